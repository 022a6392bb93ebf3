"""Grader of chapter 01. The model is a small machine that scores tokens by the whole text and notes every question."""

import hashlib
import numbers
import random
from collections import Counter
from collections.abc import Collection
from typing import Any

import torch

from exercises.kit import batch_work
from exercises.kit.grading import Check, Engine, case

VOCABULARY = 32
PROMPT = [11, 4, 25, 4]
MOST_CALLS = 300  # of a model; no case needs more than forty


class Model:
    """Scores the tokens by the whole text so far, and keeps what it is asked.

    Args:
        plan: the best next token by the number of tokens in the text; any other place has one that follows from the
            text, 8 or more.
        lead: by how much the best number is larger than those of the two tokens beside it; None makes these two like
            all others, far behind.
        shift: is added to all numbers.
    """

    def __init__(self, plan: dict[int, int] | None = None, lead: float | None = None, shift: float = 0.0) -> None:
        self.plan, self.lead, self.shift = plan or {}, lead, shift
        self.texts: list[list[int]] = []
        self.trouble = ""  # what was wrong with a question that could not be answered

    def best(self, text: list[int]) -> int:
        """The token that gets the largest number after this text."""
        chosen = 8 + hashlib.sha256(repr(text).encode()).digest()[0] % (VOCABULARY - 8)
        return self.plan.get(len(text), chosen)

    def __call__(self, token_ids) -> torch.Tensor:
        is_batch = isinstance(token_ids, torch.Tensor) and token_ids.dim() != 1
        if is_batch or any(isinstance(token_id, list | tuple) for token_id in token_ids):
            self.trouble = A_BATCH
            raise TypeError("the model reads one text, a list of token ids")
        if len(self.texts) >= MOST_CALLS:
            self.trouble = NO_END
            raise RuntimeError(f"the model has been asked {MOST_CALLS} times")
        text = [int(token_id) for token_id in token_ids]
        self.texts.append(text)
        digest = hashlib.sha256(repr((text, "others")).encode()).digest()
        logits = torch.tensor([-4 - digest[i] / 64 for i in range(VOCABULARY)])  # -8 to -4: as real ones, negative
        best = self.best(text)
        if self.lead is not None:
            logits[[best - 1, (best + 1) % VOCABULARY]] = -2.5 - self.lead
        logits[best] = -2.5
        return logits + self.shift

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
    shown = prompt if len(prompt) <= 20 else f"{len(prompt)} tokens long"
    check.step(
        f"the prompt is {shown}, max_tokens is {max_tokens}, eos is {eos!r}",
        says=lambda error: model.trouble or on_error(error),
    )
    given, model.texts = list(prompt), []
    answer = engine.get("labs:naive_loop")(model, given, max_tokens, eos)

    kind = type(answer).__name__
    if kind == "generator":  # which has not begun
        check.equal("the type of the answer", kind, "list", says=KINDS)
        return
    says = END_IN_PROMPT if any(token_id in eos for token_id in prompt) else None
    check.true("whether the model was asked at all", model.texts, says=says)
    texts = [text for i, text in enumerate(model.texts) if i == 0 or text != model.texts[i - 1]]
    for i, text in enumerate(texts[: len(expected)]):
        whole = prompt + [other[-1] for other in texts[1 : i + 1] if other]
        likely = not_the_whole_text(text, whole, prompt, texts[i + 1 : i + 2])
        check.equal(f"what the model was asked in call {i + 1}", text, whole, says=likely)
    check.equal("the type of the answer", kind, "list", says=KINDS)
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
KINDS = {
    "NoneType": "Nothing is returned.",
    "tuple": "The numbers may be right, but they are in a tuple. A list is asked for.",
    "Tensor": "The numbers may be right, but they are in a tensor. A list is asked for.",
    "generator": "A function with yield gives its values one by one, on request. A list of all of them is asked for.",
    "int": "A single number is returned. All new tokens are asked for, in a list.",
    "str": "A text is returned. The ids of the new tokens are asked for, in a list.",
    "set": "A set forgets the order of the tokens, and how often each came. A list is asked for.",
}
CUT = (
    "The model was given the end of the text only, and the beginning was cut off. It has no memory: what it is not told"
    " in this call, it does not know."
)
OTHER_ORDER = (
    "The model was given the right tokens in another order: first comes the prompt, then what has been written."
)
GAPS = (
    "Some tokens of the text are missing. The model has no memory: what it is not told in this call, it does not know."
)
A_BATCH = "The model reads one text: a flat list of token ids, not a list with lists in it."
NO_END = "The loop goes on and on: the model was asked far more often than there may be new tokens."
NEARLY_EQUAL = (
    "Two of the model's numbers are nearly equal here, and the larger one was not taken. Was something rounded on the"
    " way, or computed with fewer bits? The numbers can be compared as they come."
)
FAR_FROM_ZERO = (
    "All numbers are far from zero here, and something was computed from them that got too large or too small for a"
    " float. The numbers can be compared as they come."
)
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
        is_end = len(text) < len(whole) and text == whole[-len(text) :]
        if is_end:
            return BEGINNING_MISSING if len(text) <= 4 else CUT
        if sorted(text) == sorted(whole):
            return OTHER_ORDER
        rest = iter(whole)
        return GAPS if len(text) < len(whole) and all(token_id in rest for token_id in text) else None
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
    if set(got) == {0} and 0 not in expected and not model.shift:
        return ZEROS
    if set(got) == {-2}:
        return LARGEST_NUMBER
    wrong = next((i for i, (a, b) in enumerate(zip(got, expected, strict=False)) if a != b), None)
    if wrong is None:
        is_early = len(got) < len(expected)
        return (
            f"The answer ends after {len(got)} tokens; none is an end token, and {max_tokens} are allowed." * is_early
        )
    logits = model([*prompt, *expected[:wrong]])
    if got[wrong] < VOCABULARY and 0 < logits.max() - logits[got[wrong]] < 0.01:
        return NEARLY_EQUAL
    if abs(model.shift) > 100:
        return FAR_FROM_ZERO
    if got[wrong] == int(logits.argmin()):
        return f"Token {got[wrong]} has the smallest number of all. The largest is that of token {expected[wrong]}."
    return f"After these tokens, {[*prompt, *expected[:wrong]]}, the largest number is that of token {expected[wrong]}."


def on_error(error: str) -> str | None:
    """What an error means that is raised while the loop writes."""
    return (
        "The recursion got too deep: each new token calls the function once more."
        if error == "RecursionError"
        else None
    )


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
def two_that_are_nearly_equal(engine, check):
    """A model that hardly knows which of three tokens to take: their numbers differ a little. The largest counts."""
    run(engine, check, Model(lead=0.001), 10, {2})
    run(engine, check, Model(lead=0.00025), 10, {2})


@case("ch01.naive_loop")
def far_from_zero(engine, check):
    """The model's numbers may have any size. These are all about -300, and then about 300."""
    run(engine, check, Model({8: 2}, shift=-300), 10, {2})
    run(engine, check, Model({8: 2}, shift=300), 10, {2})


@case("ch01.naive_loop")
def a_long_prompt(engine, check):
    """A prompt of 2,100 tokens, and three new ones."""
    run(engine, check, Model(), 3, {2}, [8 + i * i % 23 for i in range(2100)])


@case("ch01.naive_loop")
def one_prompt_for_two_answers(engine, check):
    """The same list is the prompt of two answers, one after the other."""
    model, prompt = Model(), list(PROMPT)
    for max_tokens in (3, 5):
        check.step(f"with the same list once more, max_tokens is {max_tokens}")
        answer = engine.get("labs:naive_loop")(model, prompt, max_tokens, {2})
        check.equal("the answer", [*map(int, answer)], model.continuation(PROMPT, max_tokens), says=CHANGED_BEFORE)


# group_requests: an open exercise


def batches_of(engine: Engine, check: Check, lengths: list[int], max_batch: int) -> list[list[int]] | None:
    """The batches that are chosen, if they keep the promises."""
    given = list(lengths)
    shown = lengths if len(lengths) <= 12 else f"{len(lengths)} of them"
    check.step(f"group_requests: the lengths are {shown}, max_batch is {max_batch}")
    batches = engine.get("labs:group_requests")(given, max_batch)
    check.equal(
        "the lengths afterwards", given, lengths, says="The list belongs to the caller: sorted() makes a new one."
    )
    kinds = [type(batches).__name__, *sorted({type(batch).__name__ for batch in batches or ()})]
    wanted = ["list", "list"] if lengths else ["list"]
    if not check.equal("the types of the whole and of its batches", kinds, wanted, says=wrong_kinds):
        return None
    places = [place for batch in batches for place in batch]
    if not check.true(
        "every request is named by a whole number", all(isinstance(place, numbers.Integral) for place in places)
    ):
        return None
    found = Counter(map(int, places))
    unknown = sorted(place for place in found if not 0 <= place < len(lengths))
    are_lengths = bool(unknown) and set(found) <= set(lengths)
    says = LENGTHS_NOT_PLACES if are_lengths else "A request is named by its place in lengths: 0 is the first."
    is_known = check.equal("numbers that belong to no request", unknown, [], says=says)
    left_out = [place for place in range(len(lengths)) if not found[place]]
    twice = sorted(place for place, count in found.items() if count > 1)
    says = "A request that is in no batch never gets its answer."
    is_whole = check.equal("requests that are in no batch", left_out, [], says=says)
    says = "These requests would be computed twice."
    is_whole &= check.equal("requests that are in two batches", twice, [], says=says)
    sizes = [len(batch) for batch in batches]
    says = "A batch has more requests than may run together."
    fits = check.true(f"no batch has more than {max_batch}", max(sizes, default=0) <= max_batch, says=says)
    has_work = check.true("no batch is empty", 0 not in sizes, says="An empty batch has no longest request.")
    return batches if is_known and is_whole and fits and has_work else None


LENGTHS_NOT_PLACES = "These are the lengths themselves. A request is named by its place in the list: 0 is the first."
MORE_THAN_ARRIVAL = (
    "These batches take more steps than the order of arrival. If the requests do not fill all batches: which of them"
    " are in the one that is not full?"
)


def wrong_kinds(kinds: list[str]) -> str:
    """What it means that the answer is not a list of lists."""
    if kinds[0] == "NoneType":
        return "Nothing is returned."
    if kinds == ["list", "int"]:
        return "That is one list of requests. A list of batches is asked for, each a list of its own."
    return "A list of lists is asked for, also if there is one batch, or none."


def compare(check: Check, batches: list[list[int]], lengths: list[int], max_batch: int) -> None:
    """Never more steps than in the order of arrival."""
    arrival = batch_work.num_steps(batch_work.in_order_of_arrival(len(lengths), max_batch), lengths)
    steps = batch_work.num_steps(batches, lengths)
    check.step(f"the batches are {batches}: {steps} steps, and {arrival} in the order of arrival")
    check.true("not more steps than in the order of arrival", steps <= arrival, says=MORE_THAN_ARRIVAL)


@case("ch01.group_requests")
def two_by_two(engine, check):
    """Two short and two long answers, two in a batch."""
    for lengths in ([3, 9, 3, 9], [9, 9, 3, 3], [3, 9, 9, 3]):
        batches = batches_of(engine, check, lengths, 2)
        if batches is not None:
            compare(check, batches, lengths, 2)


@case("ch01.group_requests")
def the_work(engine, check):
    """The 24 requests, in batches of 4: at most 260 steps."""
    lengths = list(batch_work.LENGTHS)
    batches = batches_of(engine, check, lengths, batch_work.MAX_BATCH)
    if batches is None:
        return
    steps, wait = batch_work.num_steps(batches, lengths), batch_work.mean_wait(batches, lengths)
    told = f"{steps} steps, and {batch_work.ARRIVAL} in the order of arrival"
    check.measured(f"{told}; on average, an answer is there after {wait:.0f} steps")
    says = "Some seats are empty for long. Look at one of your batches: who waits for whom?"
    check.true(f"at most {batch_work.BAR} steps", steps <= batch_work.BAR, says=says)


@case("ch01.group_requests")
def some_seats_stay_empty(engine, check):
    """The number of requests is no multiple of the batch's size."""
    for lengths, max_batch in (([9, 2, 3, 4, 1], 4), ([50, 40, 40, 2], 3), ([7, 1, 1, 1, 1, 1, 6], 3)):
        batches = batches_of(engine, check, lengths, max_batch)
        if batches is not None:
            compare(check, batches, lengths, max_batch)


@case("ch01.group_requests")
def small_and_special(engine, check):
    """No request at all, one request, room for more than there are, room for one, all of one length."""
    for lengths, max_batch in (([], 4), ([5], 4), ([5, 1, 8], 16), ([5, 1, 8], 1), ([6] * 10, 4)):
        batches = batches_of(engine, check, lengths, max_batch)
        if batches is not None:
            compare(check, batches, lengths, max_batch)


@case("ch01.group_requests")
def any_requests(engine, check):
    """Requests of all kinds, by chance."""
    rng = random.Random(5)
    for _ in range(40):
        lengths = [rng.choice([rng.randrange(1, 9), rng.randrange(1, 200)]) for _ in range(rng.randrange(1, 40))]
        max_batch = rng.randrange(1, 10)
        batches = batches_of(engine, check, lengths, max_batch)
        if batches is None:
            return
        compare(check, batches, lengths, max_batch)
