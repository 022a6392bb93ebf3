"""Your answers to chapter 01, project overview.

Write here, or in the notebook's cells, which write here. Helpers and imports may stand beside a function, under its
marker line; those at the top are for all. "python -m exercises check" says how it is going; "python -m exercises" what
there is to do.
"""

# derived: b75a2df1d78a
# ruff: noqa
# mypy: ignore-errors
# fmt: off

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
import torch


# --- ch01.naive_loop
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
    raise NotImplementedError("ch01.naive_loop")
