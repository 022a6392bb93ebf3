"""Your answers to chapter 08, model runner.

Write here, or in the notebook's cells, which write here. Helpers and imports may stand beside a function, under its
marker line; those at the top are for all. "python -m exercises check" says how it is going; "python -m exercises" what
there is to do.
"""

# derived: 59f9ab0d5427
# ruff: noqa
# mypy: ignore-errors
# fmt: off

from __future__ import annotations

import gc
import threading
from typing import Any
import torch
import xxhash
from torch import Tensor
from nanovllm.config import Config
from nanovllm.layers.attention import Attention
from nanovllm.layers.backends import get_attention_class
from nanovllm.layers.sampler import Sampler, SamplingMetadata
from nanovllm.models import get_model_class
from nanovllm.utils.context import reset_context, set_context
from nanovllm.utils.loader import init_dummy_weights, load_model
from nanovllm.utils.parallel_state import TensorParallelGroup, tensor_parallel_group
from nanovllm.utils.swap import swap
from nanovllm.engine.kv_cache import choose_num_blocks, largest_prefill, out_of_memory_explained
from nanovllm.engine.sequence import Sequence
from nanovllm.engine.step_output import StepOutput, StepResult, top_logprobs
from nanovllm.engine.model_runner import ONE_AT_A_TIME, ModelRunner
from collections.abc import Mapping


# --- ch08.slots
def slots(self, seq: Sequence, start: int, end: int) -> list[int]:
    """Where the keys and values of the tokens `start` to `end - 1` are stored.

    Block b of the pool has the slots `b * block_size` to `(b + 1) * block_size - 1`, and
    `seq.block_table` names the blocks of a sequence in the order of its tokens. The runner and
    its sequences have the same `block_size`.

    Args:
        seq: its table has a block for each of these tokens, or is empty, as in the warm-up,
            when there is no pool yet.
        start, end: positions in the sequence, `start <= end`.

    Returns:
        a slot for each token, in order, ints; an empty list if the table is empty.
    """
    raise NotImplementedError("ch08.slots")


# --- ch08.prepare_prefill
def prepare_prefill(self, seqs: list[Sequence]) -> tuple[Tensor, Tensor]:
    """Put the scheduled tokens of all sequences behind each other, without padding.

    Token by token: its id, its position in its own sequence, and its slot
    (`slots(seq, start, end)`). Where sequences begin and end in the flat batch, two lists of
    sums say, from 0 on: `cu_seqlens_q` sums up the tokens that are computed now,
    `cu_seqlens_k` all tokens whose keys and values a sequence has when the step has run. Lists
    become the step's context with `set_prefill_context`, and tensors with `to_device`.

    Args:
        seqs: at least one; of each, `scheduled_token_ids` are computed, which come after
            `num_cached_tokens` others. Copies in worker processes may have no `token_ids`.

    Returns:
        input_ids, positions: [num_tokens] int64.
    """
    raise NotImplementedError("ch08.prepare_prefill")


# --- ch08.prepare_decode
def prepare_decode(self, seqs: list[Sequence]) -> tuple[Tensor, Tensor]:
    """One token of every sequence: its last, the only one without keys and values.

    The context (`set_context`) says that this is no prefill (`is_prefill`), and has the slot
    of each token (`slot_mapping`, int64), the number of tokens that each sequence attends to,
    the new one included (`context_lens`, int32), and the block tables (`block_tables`, which
    `prepare_block_tables` makes).

    Args:
        seqs: at least one; the last block of each has room for its last token. Copies in
            worker processes have no `token_ids`, only `last_token` and `num_tokens`.

    Returns:
        input_ids, positions: [num_seqs] int64.
    """
    raise NotImplementedError("ch08.prepare_decode")


# --- ch08.choose_graph_sizes
def choose_graph_sizes(counts: Mapping[int, int], largest: int, most: int) -> list[int]:
    """For which batch sizes a CUDA graph is recorded.

    A decode step of n sequences replays the smallest graph for n sequences or more. What the graph
    computes beyond n is padding.

    The goal: little padding in all steps together. On the day of `exercises.kit.graph_work`, nine
    graphs for powers of two pad 28,621 rows; at most 12,000 are asked for.

    Every batch that can come has to find a graph, from one sequence to `largest`, also where
    `counts` has none of its size.

    Args:
        counts: how many steps had how many sequences, by the number of sequences; may be empty.
        largest: the most sequences that a step can have.
        most: how many graphs there may be, at least 1.

    Returns:
        at most `most` different sizes from 1 to `largest`, ints, in any order.
    """
    raise NotImplementedError("ch08.choose_graph_sizes")
