"""Our answers to chapter 09, linear layers, cut out of nanovllm/, each with its reason."""

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
from exercises.kit.parallel_work import CUTS, Linear, numbers_sent, weights_held


# --- ch09.shard
# narrow makes a view: no number is copied, and a checkpoint that is mapped into memory is read only where the part lies. That a
# remainder is an error is a decision. Unequal parts would work for a single matrix, but the ranks would no longer do the
# same thing at the same time: shapes in collectives, recorded graphs and blocks of the cache are equal on all ranks, and only
# then. Without `divide`, torch.chunk would make a shorter last part and say nothing.
def shard(tensor: Tensor, dim: int, rank: int, size: int) -> Tensor:
    """The `rank`-th of `size` equal parts of `tensor` along `dim`; parts are contiguous ranges.

    The tensor stays as it is. Raises `ValueError` if it cannot be split evenly.
    """
    length = divide(tensor.shape[dim], size)
    return tensor.narrow(dim, rank * length, length)


# --- ch09.weight_loader
# A query head and the KV head that it asks have to be on one rank, or attention would need an exchange of its own. Ranges do
# that by themselves: the heads of a group are neighbors, and a range of query heads has with it just the range of KV heads
# that belongs to it. With fewer KV heads than ranks each range has less than one KV head, so it is held whole, several times:
# the price is memory, for weights and for the cache, and this is why more ranks than KV heads save less and less. Copying
# into a view of the parameter keeps its dtype, and the rows of the other two projections.
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
    replicas = 1 if shard_id == "q" else self.num_kv_head_replicas
    heads = shard(loaded_weight, 0, self.tp_rank // replicas, self.tp_size // replicas)
    default_weight_loader(param.data.narrow(0, *self.shards[shard_id]), heads)


# --- ch09.forward
# Sum the parts, and the bias comes in as often as somebody has added it: so one rank does, or all do after the sum. On rank 0
# it is part of the product, which costs nothing. Nobody may skip the all-reduce, whatever the rank: a collective is a meeting,
# and who does not come lets the others wait for ever. Every rank holds the whole bias, though one needs it, because it is small,
# and because all ranks then load the same file in the same way.
def forward(self, x: Tensor) -> Tensor:
    """[..., input_size / ranks] -> [..., output_size], the layer's whole result on every rank.

    Together the ranks' inputs are the input of the full layer, and the result is what the full
    layer makes of it: the bias counts once, however many ranks there are. It takes one
    all-reduce, `self.group.all_reduce`. Input, weight and bias stay as they are.

    Args:
        x: the features whose columns this rank has.
    """
    bias = self.bias if self.group.rank == 0 else None
    return self.group.all_reduce(self.multiply(x, bias))


# --- ch09.choose_cuts
# What comes later depends on the past in two ways only: is the vector whole or in parts, and how much room is left. So of all
# plans for a beginning few have to be kept, and 1,040 is the least there is. Three things can be seen in them. Column and row
# belong together, for what is between them never has to be whole. A matrix that is small, and whose result is sent, is better held by
# everybody: memory is exchanged for meetings. And where the input is whole and a norm follows, a column cut with an
# all-gather sends half of what a row cut with an all-reduce does, the reason behind sequence parallelism, too. What is not
# counted here is that every meeting has a price of its own, however little is said in it.
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
    plans: list[list[str]] = [[]]
    for n in range(1, len(linears) + 1):
        begun, longer = linears[:n], [[*plan, cut] for plan in plans for cut in CUTS]
        plans = []
        for is_cut in (False, True):  # what comes later depends on that alone, and on the room that is left
            alike = [plan for plan in longer if (plan[-1] == "column") == is_cut]
            costs = [(numbers_sent(begun, plan, num_ranks), weights_held(begun, plan, num_ranks)) for plan in alike]
            least = memory + 1
            for (_, held), plan in sorted(zip(costs, alike, strict=True)):
                if held < least:  # whoever sends more has to hold less
                    least = held
                    plans.append(plan)
    return min(plans, key=lambda plan: numbers_sent(linears, plan, num_ranks))
