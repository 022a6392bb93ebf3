"""Our answers to chapter 08, model runner, cut out of nanovllm/, each with its reason."""

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
import math
from collections.abc import Mapping


# --- ch08.slots
# A position says where a token is in its text, a slot where it is in memory, and the block table leads from one to the other:
# the same translation as a processor makes with a page table. Everything else in the engine counts in positions. Ours goes
# block by block, because the slots of a block are consecutive and a range is cheaper than a division a token; a prompt may
# have many thousands. No table means no pool: in the warm-up the model runs before anybody knows how large a pool fits.
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
    slots: list[int] = []
    if not seq.block_table:
        return slots
    for i in range(start // self.block_size, -(-end // self.block_size)):
        first, last = max(start, i * self.block_size), min(end, (i + 1) * self.block_size)
        shift = (seq.block_table[i] - i) * self.block_size  # from position to slot
        slots += range(first + shift, last + shift)
    return slots


# --- ch08.prepare_prefill
# Most of a transformer looks at each token by itself: products, norms and activations do not care whose token it is. So the
# tokens of all prompts lie behind each other, and none is padding. Three things still have to know more. The rotary embedding
# wants the position in the text; the cache the slot; attention, which may not look from one sequence into another, where each
# one begins. It wants two counts, because with cached or earlier tokens a sequence has fewer queries than keys. The name
# cu_seqlens and the idea come from FlashAttention's functions for sequences of various lengths.
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
    input_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    cu_seqlens_q, cu_seqlens_k = [0], [0]
    for seq in seqs:
        start, end = seq.num_cached_tokens, seq.num_computed_after_step
        input_ids += seq.scheduled_token_ids
        positions += range(start, end)
        slots += self.slots(seq, start, end)
        cu_seqlens_q.append(len(input_ids))
        cu_seqlens_k.append(cu_seqlens_k[-1] + end)
    self.set_prefill_context(seqs, cu_seqlens_q, cu_seqlens_k, slots)
    return self.to_device(input_ids, torch.int64), self.to_device(positions, torch.int64)


# --- ch08.prepare_decode
# A decode is a prefill of one token for each sequence, and prepare_prefill would do. It has a function of its own because its
# shapes are so plain: every tensor has one row for each sequence, and nothing depends on how long the texts are. That is what
# a kernel for decoding builds on, and a recorded graph, which can only be played again with the same shapes. It is also called
# most: once for each token that anybody writes, while the GPU waits. So it reads no token lists, only numbers; a worker
# process does not even have the lists.
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
    positions = [seq.num_tokens - 1 for seq in seqs]
    rest = [position % self.block_size for position in positions]
    slots = [s.block_table[-1] * self.block_size + r for s, r in zip(seqs, rest, strict=True)]
    set_context(
        is_prefill=False,
        slot_mapping=self.to_device(slots, torch.int64),
        context_lens=self.to_device([seq.num_tokens for seq in seqs], torch.int32),
        block_tables=self.prepare_block_tables(seqs),
    )
    input_ids = [seq.last_token for seq in seqs]
    return self.to_device(input_ids, torch.int64), self.to_device(positions, torch.int64)


# --- ch08.choose_graph_sizes
# Powers of two are even steps for somebody who knows nothing; here they leave 28,621 rows of padding, a third of all rows,
# because every batch from 65 to 108 has only 128 to go to. Ours tries all ways to cut the sizes into
# parts, from the shortest list of sizes to the longest, and keeps the best of each: dynamic programming, and 7,460 rows are
# the least there is. Adding the best size again and again leaves 7,791, equal parts of the steps 9,804. What was chosen for one
# day fits another only roughly: on the second day it pads 15,517 rows, powers of two 19,794. And a row of padding does not
# always cost time: a step of 5 takes as long as one of 8. That is why engines take a plain rule (ours 1, 2, 4 and all
# multiples of 8: 4,205 rows with 35 graphs) and pay with seconds at the start and memory.
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
    sizes = sorted({*counts, largest})
    numbers = range(1, len(sizes) + 1)

    def rows(i: int, j: int) -> int:
        # Padding of the steps with sizes i to j - 1 if all of them take the largest of these.
        return sum(counts.get(size, 0) * (sizes[j - 1] - size) for size in sizes[i:j])

    padding = {(i, j): rows(i, j) for j in numbers for i in range(j)}
    # For the first j sizes, with so many graphs: the least padding, and the graphs.
    best: list[tuple[float, tuple[int, ...]]] = [(0, ()), *((math.inf, ()) for _ in numbers)]
    for _ in range(most):
        choices = [[(best[i][0] + padding[i, j], (*best[i][1], sizes[j - 1])) for i in range(j)] for j in numbers]
        best = [best[0], *map(min, choices)]
    return list(best[-1][1])
