"""Grader of chapter 01. The model is a small machine that scores tokens by the whole text and notes every question."""

import hashlib
import numbers
from collections.abc import Collection
from typing import Any

import torch

from exercises.kit.grading import Check, Engine, case

VOCABULARY = 32
PROMPT = [11, 4, 25, 4]


class Model:
    """Scores the tokens by the whole text so far, and keeps what it is asked.

    Args:
        plan: the best next token by the number of tokens in the text; any other place has one that follows from the
            text, 8 or more.
    """

    def __init__(self, plan: dict[int, int] | None = None) -> None:
        self.plan = plan or {}
        self.texts: list[list[int]] = []

    def best(self, text: list[int]) -> int:
        """The token that gets the largest number after this text."""
        chosen = 8 + hashlib.sha256(repr(text).encode()).digest()[0] % (VOCABULARY - 8)
        return self.plan.get(len(text), chosen)

    def __call__(self, token_ids) -> torch.Tensor:
        if isinstance(token_ids, torch.Tensor) and token_ids.dim() != 1:
            raise TypeError(
                f"the model reads one text, a list of token ids; not a tensor of shape {[*token_ids.shape]}"
            )
        text = [int(token_id) for token_id in token_ids]
        self.texts.append(text)
        digest = hashlib.sha256(repr((text, "others")).encode()).digest()
        logits = torch.tensor([-4 - digest[i] / 64 for i in range(VOCABULARY)])  # -8 to -4: as real ones, negative
        logits[self.best(text)] = -2.5
        return logits

    def continuation(self, prompt: list[int], count: int) -> list[int]:
        """The best tokens, one after the other, whatever they are."""
        text = list(prompt)
        for _ in range(count):
            text.append(self.best(text))
        return text[len(prompt) :]


def run(engine: Engine, check: Check, model: Model, max_tokens: int, eos: Collection[int], prompt=PROMPT) -> None:
    """Have the loop write, and look at what the model was asked, at the answer, and at the caller's list."""
    endless = model.continuation(prompt, max_tokens + 2)
    ends = [i + 1 for i, token_id in enumerate(endless[:max_tokens]) if token_id in eos]
    expected = endless[: min([*ends, max_tokens])]
    check.step(f"the prompt is {prompt}, max_tokens is {max_tokens}, eos is {eos!r}")
    given, model.texts = list(prompt), []
    answer = engine.get("labs:naive_loop")(model, given, max_tokens, eos)

    says = END_IN_PROMPT if any(token_id in eos for token_id in prompt) else None
    check.true("whether the model was asked at all", model.texts, says=says)
    texts = [text for i, text in enumerate(model.texts) if i == 0 or text != model.texts[i - 1]]
    for i, text in enumerate(texts[: len(expected)]):
        whole = prompt + [other[-1] for other in texts[1 : i + 1] if other]
        likely = not_the_whole_text(text, whole, prompt, texts[i + 1 : i + 2])
        check.equal(f"what the model was asked in call {i + 1}", text, whole, says=likely)
    kind = type(answer).__name__
    check.equal("the type of the answer", kind, "list", says={"NoneType": "Nothing is returned.", "tuple": A_TUPLE})
    if not isinstance(answer, list):
        return
    got = [int(token_id) for token_id in answer]
    if len(model.texts) > 1 and texts == [prompt]:
        likely = ONLY_THE_PROMPT
    else:
        likely = meaning(got, expected, endless, max_tokens, prompt, eos, model)
    check.equal("the answer", got, expected, says=likely)
    check.equal("the caller's list afterwards", given, prompt, says=CHANGED)
    kinds = sorted({type(token_id).__name__ for token_id in answer if not isinstance(token_id, numbers.Integral)})
    check.equal("what is in the answer besides numbers", kinds, [], says={("Tensor",): TENSORS, ("str",): STRINGS})


CHANGED = (
    "The new tokens were put into the list that the caller passed. It belongs to the caller, who may want to use the"
    " same prompt again. Where else could they be collected?"
)
CHANGED_BEFORE = "Something of the answer before is still there: in a list that is kept, or in the caller's."
TENSORS = "The ids are tensors that hold one number each. int(...) makes a plain number of one."
STRINGS = "The ids are strings. The model reads numbers, and whoever called wants numbers back."
A_TUPLE = "The numbers may be right, but they are in a tuple. A list is asked for."
BEGINNING_MISSING = (
    "The model was given the end of the text only. It has no memory: what it is not told in this call, it does not"
    " know."
)
ONE_TOKEN_ONLY = (
    "The model was given the newest token alone. It has no memory: what it is not told in this call, it does not know."
    " It needs the prompt and everything that has been written so far."
)
NO_PROMPT = (
    "The model was given the new tokens without the prompt. It has no memory of the prompt: every call needs the whole"
    " text."
)
ONLY_THE_PROMPT = (
    "Every call of the model got the prompt alone, so it said the same each time. Where do the new tokens get into what"
    " it reads?"
)
PROMPT_TOO = "The answer begins with the prompt. The caller has that already; only the new tokens are asked for."
ONE_TOO_MANY = "That is one token more than max_tokens. How many tokens are there when the loop asks whether to go on?"
ONE_TOO_FEW = "One token is missing: the answer may have as many as max_tokens."
PROMPT_COUNTED = "Prompt and answer together have max_tokens tokens. The number is meant for the new ones alone."
ENDS_AT_ONCE = "The answer ends after its first token, which is no end token, although more are allowed."
END_DROPPED = (
    "The end token is missing. It ends the text and is part of the answer: take the token first, and then ask whether"
    " it was the last."
)
NEVER_ENDS = (
    "The text went on after an end token, up to max_tokens. eos holds all the ids that end a text: is the new token"
    " one of them?"
)
ONE_LATE = "After the end token there is one token more. Ask about the token that has just been chosen."
OTHER_END = (
    "The text ended with an end token, but not with the first one. eos may hold several ids; each of them ends it."
)
END_IN_PROMPT = (
    "There is an end token in the prompt, and nothing was written. In a chat, every message ends with one. Only a new"
    " token ends the answer."
)
ZEROS = (
    "Every token is 0. That is what argmax gives for a single number, such as logits[-1]. The logits are one row here,"
    " with one number for each token of the vocabulary."
)
LARGEST_NUMBER = (
    "That is the largest number itself, cut to an integer. The token is its place in the row, and argmax gives that."
)


def not_the_whole_text(text: list[int], whole: list[int], prompt: list[int], following: list) -> str | None:
    """What a wrong question says about the loop; the first one, and the question after it, if there is one."""
    if whole == prompt and text[: len(prompt)] == prompt:
        return CHANGED_BEFORE
    if text and text != whole[len(prompt) :]:
        return BEGINNING_MISSING if len(text) < len(whole) and text == whole[-len(text) :] else None
    return NO_PROMPT if following and len(following[0]) == len(text) + 1 else ONE_TOKEN_ONLY


def meaning(got, expected, endless, max_tokens: int, prompt, eos: Collection[int], model: Any) -> str | None:
    """What a wrong answer says about the loop."""
    has_ended = expected[-1] in eos
    if got == prompt + expected:
        return PROMPT_TOO
    if got == expected[:-1]:
        if not got and any(token_id in eos for token_id in prompt):
            return END_IN_PROMPT
        if has_ended != (len(expected) == max_tokens):  # else it may be either
            return END_DROPPED if has_ended else ONE_TOO_FEW
    if len(got) + len(prompt) == max_tokens and got == expected[: len(got)] and not has_ended:
        return PROMPT_COUNTED
    if got == expected[:1] and not has_ended:
        return ENDS_AT_ONCE
    if not has_ended and got == endless[: max_tokens + 1]:
        return ONE_TOO_MANY
    if has_ended and len(got) > len(expected) and got == endless[: len(got)]:
        if len(got) == max_tokens > len(expected) + 1:
            return NEVER_ENDS
        return OTHER_END if got[-1] in eos else ONE_LATE if len(got) == len(expected) + 1 < max_tokens else None
    if not got:
        return END_IN_PROMPT if any(token_id in eos for token_id in prompt) else None
    if set(got) == {0} and 0 not in expected:
        return ZEROS
    if set(got) == {-2}:
        return LARGEST_NUMBER
    wrong = next((i for i, (a, b) in enumerate(zip(got, expected, strict=False)) if a != b), None)
    if wrong is None:
        return None
    logits = model([*prompt, *expected[:wrong]])
    if got[wrong] == int(logits.argmin()):
        return f"Token {got[wrong]} has the smallest number of all. The largest is that of token {expected[wrong]}."
    return f"After these tokens, {[*prompt, *expected[:wrong]]}, the largest number is that of token {expected[wrong]}."


# naive_loop


@case("ch01.naive_loop")
def six_tokens(engine, check):
    """A prompt of four tokens, and six new ones. No end token comes."""
    run(engine, check, Model(), 6, {1, 2})


@case("ch01.naive_loop")
def an_end_token(engine, check):
    """Ten tokens are allowed; the fourth new one is an end token. The model would go on."""
    run(engine, check, Model({7: 2}), 10, {2})


@case("ch01.naive_loop")
def two_ids_that_end(engine, check):
    """There are two end tokens, as in many models. One of them is token 0. First one comes, and later the other."""
    for first, later in ((0, 3), (3, 0)):
        for eos in ([0, 3], (3, 0)):
            run(engine, check, Model({6: first, 9: later}), 12, eos)


@case("ch01.naive_loop")
def it_ends_at_once(engine, check):
    """The first new token is an end token already; then one token is all that is allowed."""
    run(engine, check, Model({4: 2}), 5, {2})
    run(engine, check, Model(), 1, {2})
    run(engine, check, Model({4: 2}), 1, {2})


@case("ch01.naive_loop")
def the_last_one_that_is_allowed(engine, check):
    """The end token comes just in time, as the last token that is allowed, and just too late, as the one after it."""
    run(engine, check, Model({9: 2}), 6, {2})
    run(engine, check, Model({10: 2}), 6, {2})


@case("ch01.naive_loop")
def a_chat(engine, check):
    """The prompt is a chat: a question that ended with an end token, and the beginning of an answer."""
    run(engine, check, Model({9: 2}), 8, {2}, [1, 20, 21, 2, 1, 22])
    check.step("now the end token is the prompt's last token")
    run(engine, check, Model({7: 2}), 8, {2}, [1, 20, 21, 2])


@case("ch01.naive_loop")
def nothing_ends_it(engine, check):
    """No token ends the text (eos is empty), and forty are allowed. Some of them come twice in a row."""
    run(engine, check, Model({6: 9, 7: 9, 8: 9, 20: 0, 21: 0}), 40, ())


@case("ch01.naive_loop")
def one_prompt_for_two_answers(engine, check):
    """The same list is the prompt of two answers, one after the other."""
    model, prompt = Model(), list(PROMPT)
    for max_tokens in (3, 5):
        check.step(f"with the same list once more, max_tokens is {max_tokens}")
        answer = engine.get("labs:naive_loop")(model, prompt, max_tokens, {2})
        check.equal("the answer", [*map(int, answer)], model.continuation(PROMPT, max_tokens), says=CHANGED_BEFORE)
