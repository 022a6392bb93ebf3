"""Your answers to chapter 13, embedding head.

Write here, or in the notebook's cells, which write here. Helpers and imports may stand beside a function, under its
marker line; those at the top are for all. "python -m exercises check" says how it is going; "python -m exercises" what
there is to do.
"""

# derived: 3872009b07b2
# ruff: noqa
# mypy: ignore-errors
# fmt: off

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from nanovllm.utils.context import get_context
from nanovllm.utils.parallel_state import get_tensor_parallel_group
from nanovllm.layers.embed_head import VocabParallelEmbedding, ParallelLMHead
from collections.abc import Callable
from typing import Any
from torch import Tensor


# --- ch13.embed
def forward(self, token_ids: Tensor) -> Tensor:
    """The row of each token, on every rank.

    This rank holds those of the tokens from `vocab_start` up to, but without, `vocab_end`: row
    i of `self.weight` is that of token `vocab_start` + i. For a token of another rank it has
    zeros to give. All ranks get the same `token_ids`, and all of them call
    `self.group.all_reduce`, once: the sum over the ranks is the row itself.

    `self.group.size` may be 1. Then there is nothing to add up, and an all-reduce does nothing.

    Args:
        token_ids: [num_tokens] int64, each from 0 to `num_embeddings` - 1; it stays as it is.

    Returns:
        [num_tokens, embedding_dim], in the dtype of `self.weight`; a tensor of its own.
    """
    raise NotImplementedError("ch13.embed")


# --- ch13.weight_loader
def weight_loader(self, param: nn.Parameter, loaded_weight: Tensor) -> None:
    """Copy this rank's rows of the full table into `param`, which stays where it is in memory.

    Row i of `param` is that of token `vocab_start` + i. It has `num_embeddings_per_rank` rows
    on every rank. Where the vocabulary ends before `vocab_end`, fewer of them are left to copy,
    perhaps none; the others are zero, whatever was there before.

    Args:
        param: this rank's part. Other layers may hold the same memory; its dtype stays.
        loaded_weight: [num_embeddings, embedding_dim], as the checkpoint has it; it stays.

    Raises:
        ValueError: `loaded_weight` has another shape, with more rows, say, or wider ones.
    """
    raise NotImplementedError("ch13.weight_loader")


# --- ch13.forward
def forward(self, hidden_states: Tensor) -> Tensor | None:  # type: ignore[override]
    """The logits of the last token of each sequence, to sample the next one from.

    In a step that has `cu_seqlens_q` (of `get_context()`), sequence i has the rows from
    `cu_seqlens_q[i]` up to, but without, `cu_seqlens_q[i + 1]`. In one that has none (None),
    every row is a sequence with one token. Rows that are not the last of a sequence are not
    multiplied with anything.

    A logit is the dot product of such a row with a row of `self.weight`: each rank has those
    of its own tokens. `self.group.gather(x)`, which all ranks call, once, puts the parts of all
    ranks side by side on rank 0, and returns None on the others. Every part is
    `num_embeddings_per_rank` wide, so they may be more than the vocabulary has tokens.

    Returns:
        [num_seqs, num_embeddings] on rank 0, None on the others.
    """
    raise NotImplementedError("ch13.forward")


# --- ch13.quick_head
def quick_head(table: Tensor, examples: Tensor) -> Callable[[Tensor], Tensor]:
    """Make a head that finds the best token without looking at all rows.

    The goal: along stories that are not among the examples, it finds the token with the largest
    logit at least 99 times in 100, with at most 25 % of the multiplications of the plain head,
    which are one for each number of `table` and each hidden state.

    - Whatever you do in here, once for a model, costs nothing.
    - What counts is done by the function that you return: each multiplication (a division or a
      power, too) of floats. Comparing, sorting, indexing and adding are free.

    Args:
        table: [vocab_size, hidden_size], the rows of the head. Any model's.
        examples: [n, hidden_size], hidden states as the head meets them, n at least 1.

    Returns:
        a function that is given hidden states, [m, hidden_size], m at least 1, and returns the ids
        of m tokens, [m] int64.
    """
    raise NotImplementedError("ch13.quick_head")
