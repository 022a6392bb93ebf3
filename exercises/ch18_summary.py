"""Your answers to chapter 18, summary.

Write here, or in the notebook's cells, which write here. Helpers and imports may stand beside a function, under its
marker line; those at the top are for all. "python -m exercises check" says how it is going; "python -m exercises" what
there is to do.
"""

# derived: 0bef3171dd5c
# ruff: noqa
# mypy: ignore-errors
# fmt: off

from __future__ import annotations

from collections.abc import Callable, Collection
from exercises.kit.labs import Beam, Ask


# --- ch18.beam_search
def beam_search(ask: Ask, prompt: list[int], width: int, steps: int, eos: set[int]) -> list[Beam]:
    """Continue a text in several ways at once, and find those that are most likely as a whole.

    At first there is one beam, which is empty. In each step every beam is continued by every token
    that the model names for it. Those that now end with an end token are done: they are kept, and
    never continued. Of the others, of all beams together, the `width` most likely are the beams
    of the next step. Likely means: the sum of the log-probabilities of all new tokens.

    Args:
        ask: the engine. For a list of texts it gives, in this order, a dict of next tokens with
            their log-probabilities each. It is asked once a step, about all beams, so that they
            run as one batch, and never about none.
        prompt: its token ids; the list stays as it is.
        width: the most beams, at least 1.
        steps: the most of them, and so the most tokens of a continuation; at least 1.
        eos: ids of the end tokens.

    Returns:
        the `width` most likely of all that are done and of the beams of the last step (fewer,
        if there are fewer), best first: pairs of their tokens, without the prompt, and their sum.
    """
    raise NotImplementedError("ch18.beam_search")


# --- ch18.propose
def propose(token_ids: list[int], n: int, k: int) -> list[int]:
    """Guess how a text goes on: the way it went on when its last words stood there before.

    The last `n` tokens are looked for earlier in the text. Of the places where they all stand, in
    this order, the latest counts; it may overlap with the end, but is not the end itself.

    Args:
        token_ids: prompt and answer so far; the list stays as it is.
        n: how many tokens have to be the same, at least 1.
        k: the most tokens to propose, at least 1.

    Returns:
        the tokens that followed there, at most `k`; fewer if the text ends before. An empty list if
        there is no such place.
    """
    raise NotImplementedError("ch18.propose")


# --- ch18.accept
def accept(draft: list[int], choices: list[int], eos: Collection[int]) -> list[int]:
    """The tokens that one call of the model adds to a text, so that it is what greedy would write.

    The model has read the text and a draft behind it, and says what it would write at each place.

    Args:
        draft: the proposed tokens, maybe none; the list stays as it is, as does `choices`.
        choices: one more than the draft has tokens. `choices[0]` is the model's token after the
            text, `choices[1]` its token after the text and `draft[0]`, and so on; the last one
            comes after the whole draft.
        eos: ids of the end tokens. Behind the first one nothing is added.

    Returns:
        at least one token, and as many as can be known to be the model's from this call.
    """
    raise NotImplementedError("ch18.accept")


# --- ch18.my_proposer
def my_proposer(seen: list[list[int]]) -> Callable[[list[int]], list[int]]:
    """A proposer of your own, which has read what the model wrote before.

    The goal: few calls of the model. On 16 stories of `exercises.kit.draft_work`, none of which is
    among the seen, `propose` with n=1 comes to 1.17 tokens a call; at least 2.5 are asked for.

    Args:
        seen: token ids of 32 other texts, prompts and answers; they stay as they are.

    Returns:
        a function of a text, prompt and answer so far, as a list of ids that stays as it is. It
        gives the tokens that may come next, a list: at most 4 of it count, and it may be empty. It
        is called before each call of the model, so it has to be quick: 10 ms on average at most.
    """
    raise NotImplementedError("ch18.my_proposer")
