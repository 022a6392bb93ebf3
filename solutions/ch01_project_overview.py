"""Our answers to chapter 01, project overview, cut out of nanovllm/, each with its reason."""

# ruff: noqa
# mypy: ignore-errors
# fmt: off

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
import torch


# --- ch01.naive_loop
# The model is a function without a memory: what it is not told in this call, it does not know. So every call gets the
# whole text, and the loop computes the same tokens again and again; the rest of the course is about not doing that. The
# end token belongs to the answer, because it is what the model wrote: whoever shows the text to people can leave it out,
# but nobody could put it back. It is looked for among the new tokens only: the prompt of a chat is full of end tokens, one
# after each message.
def naive_loop(
    model: Callable[[Sequence[int]], torch.Tensor],
    token_ids: Sequence[int],
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
