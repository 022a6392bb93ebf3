"""Our answers to the exercises that are no part of the engine: small programs around it, and experiments in it.

An open exercise has many right answers; here is one. Some take the place of a function of the engine on request
(`replaces` in the manifest): `mine("ch05.choose_block_to_evict")`.
"""

from collections.abc import Callable, Collection, Sequence

import torch

# Chapter 01.


def naive_loop(
    model: Callable[[Sequence[int]], torch.Tensor], token_ids: Sequence[int], max_tokens: int, eos: Collection[int]
) -> list[int]:
    """Continue a text greedily, without a cache: every new token reads the whole text again.

    Args:
        model: takes the ids of all tokens so far; returns the logits of the next token, float [vocabulary size].
        token_ids: ids of the prompt's tokens; the list stays as it is.
        max_tokens: the most tokens to write, at least 1.
        eos: ids of the end tokens. One of them ends the text, and is part of the answer.

    Returns:
        the ids of the new tokens, without those of the prompt.
    """
    answer: list[int] = []
    while len(answer) < max_tokens and (not answer or answer[-1] not in eos):
        logits = model([*token_ids, *answer])
        answer.append(int(logits.argmax()))
    return answer
