"""The data generator: the same for a seed, consistent in names and things, right in its answers, split cleanly."""

from __future__ import annotations

import ast
import operator
import random
import re
from collections import Counter
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from training import dataset, facts, phrases, stories, tasks
from training import words as w

ALL_NAMES = {*w.BOYS, *w.GIRLS, *w.PETS}


def drawn(make, count: int, seed: int = 0) -> list:
    rng = random.Random(seed)
    return [make(rng) for _ in range(count)]


def test_same_seed_same_documents():
    first = [doc.text for doc in drawn(dataset.document, 300)]
    assert first == [doc.text for doc in drawn(dataset.document, 300)]
    assert first != [doc.text for doc in drawn(dataset.document, 300, seed=1)]


def test_stories_are_distinct():
    texts = drawn(stories.free_story, 2500)
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("seed", [1, 2])
def test_requested_stories_keep_names_things_and_pronouns(seed):
    for request, text, cast in drawn(stories.asked_story, 1000, seed):
        names = set(re.findall(r"[A-Z][a-z]+", text)) & (ALL_NAMES - {"Will", "Rose", "Daisy", "Pearl", "Hope"})
        assert names <= {cast.hero, cast.friend}, (names, text)
        assert len(re.findall(rf"\b{cast.hero}\b", text)) >= 3, text
        assert len(re.findall(rf"\b{cast.thing}\b", text)) >= 3, text
        genders = {cast.gender, cast.elder_gender} | ({cast.friend_gender} if cast.friend in text else set())
        said = {
            g
            for g, forms in (("f", r"\b(she|her|herself)\b"), ("m", r"\b(he|him|his|himself)\b"))
            if re.search(forms, text, re.IGNORECASE)
        }
        assert said <= genders, text
        lower = request.lower()
        for name in re.findall(r"(?<=about )[A-Z][a-z]+", request):
            assert name in (cast.hero, cast.friend), (request, text)
        if cast.thing in lower:
            assert cast.thing in text.lower()


def test_stories_have_clean_sentences():
    for text in drawn(stories.free_story, 1500, 4):
        assert not re.search(r"[\[\]{}|<>]|  | \.|\.\.|,\.|\?\.|\ba [aeiou](?!ni|se|ne)|\ban [^aeiouh]", text), text
        assert text[0].isupper() and text[-1] in '."?'
        assert text.count('"') % 2 == 0, text
        assert not re.search(r"[.?] [a-z]", text), text


def test_coins_add_up():
    """In the story of earning, the coins told after each job are the ones before it plus the pay."""
    number = {word: i for i, word in enumerate(w.NUMBER_WORDS)} | {"no": 0}
    checked = 0
    rng = random.Random(5)
    while checked < 200:
        cast = stories.draw_cast(rng)
        if stories.wish not in stories.plots_for(cast):
            continue
        text = stories.tell(rng, cast, stories.wish)
        price = number[re.search(r"costs? (\w+) coin", text)[1]]
        have = re.search(r"had (?:only )?(\w+) coins?(?: at all)?[ .]", text)
        coins = 0 if "It was empty" in text else number[have[1]]
        pays = re.findall(r"(?:got|earned|gave (?:him|her)) (\w+) coins?[., ]", text)
        totals = re.findall(r"(?:Now (?:he|she) had|so now (?:he|she) had|so that made) (\w+) coins?\.", text)
        assert len(pays) == len(totals) > 0, text
        for pay, total in zip(pays, totals, strict=True):
            coins += number[pay]
            assert coins == number[total], text
        assert coins == price, text
        checked += 1


# --- tasks ----------------------------------------------------------------------------------------------------

OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def examples(task: str, count: int = 250, test: bool = False) -> list[tasks.Example]:
    rng = random.Random(f"{task}/{test}")
    makers = [maker for maker, _ in tasks.MAKERS.values()]
    maker = next(m for m in makers if any(m(rng, test).task == task for _ in range(60)))
    found = []
    while len(found) < count:
        example = maker(rng, test)
        if example.task == task:
            found.append(example)
    return found


def question_and_answer(example: tasks.Example) -> tuple[str, str]:
    return example.messages[-2]["content"], example.messages[-1]["content"]


@pytest.mark.parametrize("task", ["sum", "difference", "product", "word problem"])
def test_arithmetic_is_right_and_about_the_question(task):
    for example in examples(task):
        question, answer = question_and_answer(example)
        a, sign, b, equals, result = answer.split()
        assert OPERATORS[sign](int(a), int(b)) == int(result) and equals == "="
        assert sorted(re.findall(r"\d+", question), key=int) == sorted([a, b], key=int)
        assert int(result) >= 0


def sieve(limit: int) -> list[int]:
    marked = set()
    for i in range(2, limit):
        if i not in marked:
            marked.update(range(2 * i, limit, i))
    return [i for i in range(2, limit) if i not in marked]


def test_primes_against_a_sieve():
    for example in examples("primes"):
        question, answer = question_and_answer(example)
        limit = int(re.findall(r"\d+", question)[-1])
        numbers = [int(n) for n in re.findall(r"\d+", answer.split(" are ")[1])]
        expected = sieve(200)[:limit] if "first" in answer else sieve(limit)
        assert numbers == expected, (question, answer)
    for example in examples("prime or not"):
        number = int(re.search(r"\d+", example.messages[0]["content"])[0])
        assert ("is a prime" in example.messages[1]["content"]) == (number in sieve(101))


@pytest.mark.parametrize("task", ["counting", "counting down", "counting in steps"])
def test_counting(task):
    for example in examples(task):
        question, answer = question_and_answer(example)
        numbers = [int(n) for n in answer.split(", ")]
        steps = {b - a for a, b in pairwise(numbers)}
        asked = [int(n) for n in re.findall(r"\d+", question)]
        assert len(steps) == 1 and asked[-2:] == [numbers[0], numbers[-1]]
        assert steps == ({asked[0]} if task == "counting in steps" else {-1 if task == "counting down" else 1})


@pytest.mark.parametrize(("task", "wanted"), [("spelling", 1), ("reversing", -1)])
def test_spelling(task, wanted):
    for example in examples(task):
        question, answer = question_and_answer(example)
        word = "".join(re.findall(r"[A-Za-z]+", answer))[::wanted]
        assert re.search(rf"\b{word}\b", question), (question, answer)


def test_even_odd_and_larger():
    for example in examples("even or odd"):
        number = int(re.search(r"\d+", example.messages[0]["content"])[0])
        assert example.messages[1]["content"] == f"{number} is {('even', 'odd')[Fraction(number, 2).denominator - 1]}."
    for example in examples("larger number"):
        question, answer = question_and_answer(example)
        a, b = (int(n) for n in re.findall(r"\d+", question))
        pick = max(a, b) if "larger" in answer else min(a, b)
        assert answer.startswith(f"{pick} is ")


@pytest.mark.parametrize("test", [False, True])
def test_every_reference_answer_is_judged_right_and_a_broken_one_wrong(test):
    rng = random.Random(7)
    for maker, _ in tasks.MAKERS.values():
        for _ in range(60):
            example = maker(rng, test)
            answer = example.messages[-1]["content"]
            assert tasks.correct(example, answer)
            assert not tasks.correct(example, "I have no answer.")
            if example.check in ("number", "numbers"):
                changed = re.sub(r"(\d+)(\D*)$", lambda m: f"{int(m[1]) + 1}{m[2]}", answer)
                assert not tasks.correct(example, changed)


def test_follow_ups_refer_to_the_conversation():
    seen = Counter()
    rng = random.Random(8)
    for _ in range(600):
        for example in tasks.conversation(rng):
            question, answer = question_and_answer(example)
            earlier = example.messages[:-2]
            if example.task == "follow-up sum":
                a, sign, b, _, result = answer.split()
                assert earlier[-1]["content"].split()[-1] == a
                assert b in question and OPERATORS[sign](int(a), int(b)) == int(result)
            elif answer.startswith("You said: ") and answer != earlier[-1]["content"]:  # not "say that again"
                assert answer == f'You said: "{earlier[-2]["content"]}"'
            elif answer.startswith("Your name is "):
                told = [m["content"] for m in earlier if m["role"] == "user"]
                assert any(answer[len("Your name is ") : -1] in text for text in told)
            else:
                continue
            seen[example.task] += 1
    assert seen["follow-up sum"] > 20 and seen["memory"] > 20


# --- the split ------------------------------------------------------------------------------------------------


def key_of(question: str) -> str:
    """A question without its style: case and final punctuation."""
    return question.lower().rstrip(".?!")


def test_no_test_question_is_a_training_question():
    for maker, _ in tasks.MAKERS.values():
        rng = random.Random(9)
        train = {key_of(maker(rng, False).messages[0]["content"]) for _ in range(800)}
        test = {key_of(maker(rng, True).messages[0]["content"]) for _ in range(200)}
        assert test and not train & test, maker


@pytest.mark.slow
def test_held_out_operands_never_appear_in_training():
    pairs = {
        test: {tuple(re.findall(r"\d+", e.messages[1]["content"])[:2]) for e in examples("sum", 1500, test)}
        for test in (False, True)
    }
    assert not pairs[False] & pairs[True]
    words = {test: {e.core.lower() for e in examples("spelling", 1500, test)} for test in (False, True)}
    assert not words[False] & words[True]


def test_follow_up_sums_avoid_held_out_operands():
    rng = random.Random(10)
    for _ in range(1500):
        for example in tasks.conversation(rng):
            if example.task == "follow-up sum":
                a, sign, b = example.messages[-1]["content"].split()[:3]
                key = ("sum", int(a), int(b)) if sign == "+" else ("difference", int(b), int(a))
                assert not phrases.held_out(*key)


def test_held_out_story_pairs_are_not_cast():
    for cast in drawn(stories.draw_cast, 3000, 11):
        assert not phrases.held_out("story", cast.hero, cast.thing)


def test_every_request_template_has_both_splits():
    rng = random.Random(12)
    parts = ("POLITE", "QUESTION", "LIST", "BELOW", "GAIN", "LOSS", "HOW_MANY", "QUOTED")
    for name, template in vars(tasks).items():
        if name.isupper() and isinstance(template, str) and name not in parts:
            slots = dict.fromkeys(re.findall(r"\[(\w+)\]", template), "x")
            for test in (False, True):
                assert tasks.phrase(rng, template, test, **slots)


# --- documents and rows ---------------------------------------------------------------------------------------


def test_stream_drops_duplicates_and_starts_rows_at_documents():
    ends = np.array([4, 8, 12, 20])
    shard = dataset.Shard(
        np.arange(20, dtype=np.uint16),
        np.ones(20, dtype=bool),
        ends,
        np.array([1, 1, 2, 3], dtype=np.uint64),
        [(), (), (77,), (77,)],
    )
    stream = dataset.Stream(None, 0, length=4, rows=1, workers=1)
    rows = stream._pack(shard)
    assert (stream.documents, stream.duplicates) == (2, 2)  # a repeated text, then a repeated story
    assert [row.tolist() for row, _ in rows] == [[0, 1, 2, 3]]
    assert rows[0][1].tolist() == [1, 2, 3, 8]
    assert stream.story_hashes == {77}


def test_loss_mask_covers_answers_only():
    # start assistant newline A B end newline, after a user message
    tokens = np.array([1, 50, 9, 7, 7, 2, 9, 1, 60, 9, 30, 31, 2, 9, 0])
    mask = dataset.loss_mask(tokens, im_start=1, im_end=2, roles=(60, 50, 51))
    assert tokens[mask].tolist() == [30, 31, 2]
    assert dataset.loss_mask(np.array([5, 6, 0]), 1, 2, (60, 50, 51)).all()


def test_texts_are_plain():
    """No template syntax is left in any text, and the data modules hold no answer twice under one question."""
    for doc in drawn(dataset.document, 1500, 13):
        body = re.sub(r"<\|im_(start|end)\|>", "", doc.text)
        assert not re.search(r"[\[\]{}|]|<\w+>", body), doc.text
    assert len(set(facts.TERMS.values())) == len(facts.TERMS)
    names = [name for names in facts.TERMS for name in names.split("/")]
    assert len(set(names)) == len(names)


def test_literal_templates_balance():
    with pytest.raises(ValueError, match="unclosed"):
        phrases.expand(random.Random(0), "{a|b")
    with pytest.raises(KeyError):
        phrases.expand(random.Random(0), "[missing]")
    assert {phrases.expand(random.Random(i), "{a|b{c|d}}") for i in range(50)} == {"a", "bc", "bd"}
    assert ast.literal_eval(repr(phrases.sentences("he said. then   he left."))) == "He said. Then he left."
