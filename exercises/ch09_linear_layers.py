"""Your answers to chapter 09, linear layers.

Write here, or in the notebook's cells, which write here. Helpers and imports may stand beside a function, under its
marker line; those at the top are for all. "python -m exercises check" says how it is going; "python -m exercises" what
there is to do.
"""

# derived: 463399635643
# ruff: noqa
# mypy: ignore-errors
# fmt: off

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from nanovllm.utils.loader import default_weight_loader
from nanovllm.utils.parallel_state import get_tensor_parallel_group
from nanovllm.layers.linear import divide, LinearBase, ReplicatedLinear, ColumnParallelLinear, MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear, shard
from collections.abc import Sequence
from exercises.kit.parallel_work import Linear, numbers_sent, weights_held


# --- ch09.shard
def shard(tensor: Tensor, dim: int, rank: int, size: int) -> Tensor:
    """The `rank`-th of `size` equal parts of `tensor` along `dim`; parts are contiguous ranges.

    The tensor stays as it is. Raises `ValueError` if it cannot be split evenly.
    """
    raise NotImplementedError("ch09.shard")


# --- ch09.weight_loader
def weight_loader(self, param: nn.Parameter, loaded_weight: Tensor, shard_id: str) -> None:
    """Copy this rank's heads of one projection to their place; the rest of `param` stays.

    This is rank `self.tp_rank` of `self.tp_size`, and has a range of the heads; rank 0 has the
    first. Where a KV head is held by several ranks, these are neighbors. Inside `param` lie
    first the queries, then the keys, then the values.

    Args:
        param: this rank's weight, [rows, hidden_size], or its bias, [rows].
        loaded_weight: of all heads, one after the other, `head_dim` rows each.
        shard_id: "q", "k" or "v"; `self.shards` has its first row in `param`, and how many.
    """
    raise NotImplementedError("ch09.weight_loader")


# --- ch09.forward
def forward(self, x: Tensor) -> Tensor:
    """[..., input_size / ranks] -> [..., output_size], the layer's whole result on every rank.

    Together the ranks' inputs are the input of the full layer, and the result is what the full
    layer makes of it: the bias counts once, however many ranks there are. It takes one
    all-reduce, `self.group.all_reduce`. Input, weight and bias stay as they are.

    Args:
        x: the features whose columns this rank has.
    """
    raise NotImplementedError("ch09.forward")


# --- ch09.choose_cuts
def choose_cuts(linears: Sequence[Linear], num_ranks: int, memory: int) -> list[str]:
    """Which matrix of a chain is cut how, so that little is sent between the ranks.

    "column" needs the whole input and makes a part of the output; "row" needs a part of the input,
    and an all-reduce after it; "replicated" is whole on every rank, as are its input and output. A
    part becomes whole by an all-gather where the next cut, a norm or the end of the chain needs it.
    `numbers_sent(linears, cuts, num_ranks)` and `weights_held(...)` count.

    The goal: for the three chains of `exercises.kit.parallel_work.tasks()` together, a rank sends
    at most 1,300 numbers a token. "row" everywhere is 5,112, "column" and "row" in turn 2,616. With
    any other chain it is never more than with either of these, and 0 where a rank has room for
    everything.

    Args:
        linears: the matrices, each with `input_size`, `output_size`, and `then`: "norm", or "each"
            where every number is treated by itself. The list stays as it is.
        num_ranks: divides all sizes.
        memory: weights that a rank has room for; enough for its share if everything is cut.

    Returns:
        "column", "row" or "replicated" for each matrix; together they fit into `memory`.
    """
    raise NotImplementedError("ch09.choose_cuts")
