"""Our answers to chapter 01, project overview, cut out of nanovllm/, each with its reason."""

# ruff: noqa
# mypy: ignore-errors
# fmt: off

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
import torch
from torch import Tensor


# --- ch01.naive_loop
# The model is a function without a memory: what it is not told in this call, it does not know. So every call gets the
# whole text, and the loop computes the same tokens again and again; the rest of the course is about not doing that. The
# end token belongs to the answer, because it is what the model wrote: whoever shows the text to people can leave it out,
# but nobody could put it back. It is looked for among the new tokens only: the prompt of a chat is full of end tokens, one
# after each message.
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
    answer: list[int] = []
    while len(answer) < max_tokens and (not answer or answer[-1] not in eos):
        logits = model([*token_ids, *answer])
        answer.append(int(logits.argmax()))
    return answer


# --- ch01.group_requests
# The longest request of all decides how long its batch takes, whoever sits beside it. So the next longest may as well sit
# there: no other choice makes the other batches shorter. Cut from the longest on, the batch that is not full has the
# shortest requests. Any order of these batches takes the same number of steps, but not the same patience: with the short ones
# first, few people wait for the long ones. All of this needs lengths that nobody knows before the answer is written.
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
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    batches = [order[i : i + max_batch] for i in range(0, len(order), max_batch)]
    return batches[::-1]  # the short ones first: fewer wait for the long ones
