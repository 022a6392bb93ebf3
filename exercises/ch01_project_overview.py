"""Your answers to chapter 01, project overview.

Write here, or in the notebook's cells, which write here. Helpers and imports may stand beside a function, under its
marker line; those at the top are for all. "python -m exercises check" says how it is going; "python -m exercises" what
there is to do.
"""

# derived: 452a8a0e546c
# ruff: noqa
# mypy: ignore-errors
# fmt: off

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
import torch
from torch import Tensor


# --- ch01.naive_loop
def naive_loop(
    model: Callable[[list[int]], torch.Tensor],
    token_ids: list[int],
    max_tokens: int,
    eos: Collection[int],
) -> list[int]:
    """Continue a text greedily, without a cache: every new token reads the whole text again.

    Args:
        model: takes the ids of all tokens so far; returns the logits of the next token, a tensor
            of one number for each token of the vocabulary.
        token_ids: ids of the prompt's tokens; the list stays as it is.
        max_tokens: the most new tokens, at least 1.
        eos: ids of the end tokens. The first new token that is one of them ends the text, and is
            part of the answer.

    Returns:
        the ids of the new tokens, without those of the prompt.
    """
    raise NotImplementedError("ch01.naive_loop")


# --- ch01.group_requests
def group_requests(lengths: Sequence[int], max_batch: int) -> list[list[int]]:
    """Group requests into batches that run one after the other.

    All requests of a batch begin together, and the next batch begins when the longest of them is
    done: a batch lasts as many steps as its longest answer has tokens.

    The goal: few steps in all. The 24 requests of `exercises.kit.batch_work`, in batches of 4, take
    365 steps in the order of arrival; at most 260 are asked for. With any other requests it shall
    never be more steps than with full batches in the order of arrival.

    Args:
        lengths: tokens of each answer, at least 1; the list stays as it is.
        max_batch: the most requests in a batch, at least 1.

    Returns:
        the batches, a list of lists, in the order in which they run. A request is named by its
        place in `lengths`, from 0 on. Each is in exactly one batch, and no batch is empty.
    """
    raise NotImplementedError("ch01.group_requests")
