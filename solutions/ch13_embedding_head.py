"""Our answers to chapter 13, embedding head, cut out of nanovllm/, each with its reason."""

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
# Each token has one owner, so the sum has one row and zeros, and adding zeros rounds nothing: the result is the very same on
# any number of ranks. That foreign tokens look up row 0 and throw it away costs a little reading, and it keeps all shapes equal:
# no rank has to count its tokens, which would make the CPU wait for a GPU, and CUDA graphs could not record it. The mask has to
# come after the lookup, too: the index that is put in for a foreign token is a row like any other.
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
    if self.group.size == 1:
        return F.embedding(token_ids, self.weight)
    is_mine = (token_ids >= self.vocab_start) & (token_ids < self.vocab_end)
    local_ids = torch.where(is_mine, token_ids - self.vocab_start, 0)
    embeddings = F.embedding(local_ids, self.weight) * is_mine.unsqueeze(-1)
    return self.group.all_reduce(embeddings)


# --- ch13.weight_loader
# The parameter was made with torch.empty: what nobody fills is whatever lay there, and nan among it would spread. Rows beyond the
# vocabulary are never looked up, and their logits are cut off, so zeros are a precaution, and make two runs equal. Copying
# into the parameter matters more: with tied weights embedding and head are one parameter, known by two names, and a new tensor
# under one name would leave the other with the old one. copy_ also changes the dtype, so a checkpoint in float32 fills a model in
# bfloat16 without a second table in memory. The shape is checked because a slice of a table that is too short is silently
# short.
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
    if loaded_weight.shape != (self.num_embeddings, param.shape[1]):
        expected = [self.num_embeddings, param.shape[1]]
        raise ValueError(f"expected shape {expected}, got {list(loaded_weight.shape)}")
    rows = loaded_weight[self.vocab_start : self.vocab_end]
    param.data[: len(rows)].copy_(rows)
    param.data[len(rows) :].zero_()


# --- ch13.forward
# Sampling needs one row of logits a sequence. The rows are chosen before the product, because the product is the expensive part:
# for a prompt of 1,000 tokens it would be a thousand times as much work. Whoever asks for the log-probabilities of a whole prompt
# needs all of them, and vLLM computes them then, and only then. The parts are gathered, not all-gathered: only rank 0
# samples. And the padding is cut after the gather: only the last ranks have any, and a gather wants equally wide parts. Left
# in, a padded logit of 0 would win wherever all real ones are negative, and nobody could decode that token.
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
    context = get_context()
    if context.cu_seqlens_q is not None:
        hidden_states = hidden_states[context.cu_seqlens_q[1:] - 1]
    logits = self.group.gather(F.linear(hidden_states, self.weight))
    return None if logits is None else logits[:, : self.num_embeddings]


# --- ch13.quick_head
# Logits are dot products, and most of a dot product lies in few directions: hidden states do not fill their 256 dimensions evenly. The
# rough pass need not be right, it only has to keep the winner among its best 64, and the true pass puts them in order. Directions
# of the examples are better than those of the table, because an error counts only where hidden states point. Frequent rows alone
# fail: there is a long tail of tokens, and a story needs a rare one every few words. Nothing here is exact, and that is
# the price: one token in a hundred is another one, so an engine that promises the model's own tokens cannot use it. It can be used to guess, though, if somebody
# checks the guess: that is what speculative decoding does.
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
    directions = torch.linalg.svd(examples.T @ examples).U[:, : max(1, table.shape[1] // 6)]
    rough = table @ directions
    count = min(len(table), 64)

    def find(hidden: Tensor) -> Tensor:
        few = ((hidden @ directions) @ rough.T).topk(count).indices
        logits = (table[few] @ hidden.unsqueeze(-1)).squeeze(-1)
        return few.gather(1, logits.argmax(-1, keepdim=True)).flatten()

    return find
