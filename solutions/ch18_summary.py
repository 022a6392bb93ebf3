"""Our answers to chapter 18, summary, cut out of nanovllm/, each with its reason."""

# ruff: noqa
# mypy: ignore-errors
# fmt: off

from __future__ import annotations

from collections.abc import Callable, Collection
from exercises.kit.labs import Beam, Ask


# --- ch18.beam_search
# The engine needs nothing new for it: a beam is a request for one token, all beams of a step are one batch, and what beams share
# they find in the prefix cache, so only the last block of each is computed again. What has ended leaves the beams, or else it
# would hold a place without going on; that is why more of the others survive. A sum of log-probabilities falls with every token,
# so short texts have an advantage: BeamSearchParams therefore divides it by a power of the length (length_penalty, 1 by
# default, and 0 for what you have here). Never trust the most likely text to be the best one: for stories it is dull and
# repeats itself. Beams pay where there is one right answer, as in translation.
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
    beams: list[Beam] = [([], 0.0)]
    done: list[Beam] = []
    for _ in range(steps):
        found = ask([prompt + tokens for tokens, _ in beams])
        longer = [
            ([*tokens, token_id], total + logprob)
            for (tokens, total), logprobs in zip(beams, found, strict=True)
            for token_id, logprob in logprobs.items()
        ]
        done += [beam for beam in longer if beam[0][-1] in eos]
        going_on = [beam for beam in longer if beam[0][-1] not in eos]
        beams = sorted(going_on, key=lambda beam: -beam[1])[:width]
        if not beams:
            break
    return sorted(done + beams, key=lambda beam: -beam[1])[:width]


# --- ch18.propose
# A draft may be anything: nothing that is proposed can make the text wrong, only the call a little longer. So the cheapest
# guess is worth trying, one without a model. Texts repeat names, lines of code and pieces of what was asked; with those this
# gains much, with others nothing. A larger n is right more often and finds something less often. In vLLM it is one option
# of LLM, speculative_config={"method": "ngram", ...}, with a longest and a shortest n, and its file is
# vllm/v1/spec_decode/ngram_proposer.py.
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
    for start in range(len(token_ids) - n - 1, -1, -1):
        if token_ids[start : start + n] == token_ids[-n:]:
            return token_ids[start + n : start + n + k]
    return []


# --- ch18.accept
# Not one token of the draft gets into the text because it was proposed, but because the model has chosen the same. So the
# text is that of plain greedy decoding, whatever was proposed, and a call adds at least the one token that it would have added
# anyway. What the model chose behind a wrong token is lost: it belongs to another text. With sampling the same is possible: a
# token of the draft is kept with the probability that the model gives it, and in its place another one is drawn otherwise,
# so that the distribution stays exactly the model's (Leviathan et al., 2023; vLLM's rejection sampler).
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
    added = []
    for i, choice in enumerate(choices):
        added.append(choice)
        if choice in eos or draft[i : i + 1] != [choice]:
            break
    return added


# --- ch18.my_proposer
# Ours comes to 3.37 tokens a call, with keys of one to six tokens; two of three proposed tokens are right. Searching all texts
# with your propose, for four tokens and then for fewer, comes to 3.5, because it looks at the text itself as well, and takes
# far longer. These stories were made by a program with many phrases, so few phrases are new; with texts of people the gain would
# be smaller. What remains true is that a server's own answers are a good book to look things up in (vLLM calls that suffix
# decoding). Where nothing repeats, a small model drafts, or a head on the large one's hidden states (EAGLE, MTP).
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
    followed: dict[tuple[int, ...], list[int]] = {}
    for text in seen:
        for n in range(1, 7):
            for end in range(n, len(text)):
                followed[tuple(text[end - n : end])] = text[end : end + 4]

    def propose(token_ids: list[int]) -> list[int]:
        for n in range(6, 0, -1):
            if draft := followed.get(tuple(token_ids[-n:])):
                return draft
        return []

    return propose
