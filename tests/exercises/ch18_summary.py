"""Grader of chapter 18. What is right is said by trying everything, by searching in strings, by plain greedy."""

import math
import random
import time
from functools import cache, partial

from exercises.kit import draft_work
from exercises.kit.grading import Check, Engine, case

CHANGED = "What was handed in was changed: it belongs to the caller."


def as_tokens(value):
    """A list of plain numbers, or what it is instead."""
    if not isinstance(value, list):
        return f"a {type(value).__name__}"
    return [int(i) for i in value]


# beam_search


def model_of(seed, vocab_size):
    """A small model: what it says of a text depends on all of it, so that no two texts are equally likely."""

    @cache
    def chances(text):
        rng = random.Random(f"{seed} {text}")
        weights = [rng.uniform(0.05, 1) ** 2 for _ in range(vocab_size)]
        return {i: math.log(w / sum(weights)) for i, w in enumerate(weights)}

    return lambda text: dict(chances(tuple(text)))


def named(model, most):
    """The model as an engine answers for it: its `most` best tokens only."""
    return lambda text: dict(sorted(model(text).items(), key=lambda item: -item[1])[:most])


def all_beams(model, prompt, max_tokens, eos):
    """Every continuation, and its sum; those that are done, and those that are as long as they may be."""
    open_, found = [((), 0.0)], {(): 0.0}
    for _ in range(max_tokens):
        open_ = [((*tokens, i), total + p) for tokens, total in open_ for i, p in model([*prompt, *tokens]).items()]
        found |= dict(open_)
        open_ = [beam for beam in open_ if beam[0][-1] not in eos]
    return found


def expected_beams(model, prompt, width, max_tokens, eos):
    """From all continuations: those whose beginnings were among the best of their length."""
    found = all_beams(model, prompt, max_tokens, eos)
    by_total, kept = sorted(found, key=found.get, reverse=True), {()}
    for length in range(1, max_tokens):
        own = [b for b in by_total if len(b) == length and b[:-1] in kept and b[-1] not in eos]
        kept |= set(own[:width])
    ends = [b for b in by_total if b and b[:-1] in kept and (b[-1] in eos or len(b) == max_tokens)]
    done = [b for b in ends if b[-1] in eos]
    last = [b for b in ends if b[-1] not in eos][:width]
    return [[list(b), round(found[b], 5)] for b in sorted(done + last, key=found.get, reverse=True)[:width]]


class Asked:
    """Notes what it is asked, and answers for the model."""

    def __init__(self, model):
        self.model, self.calls = model, []

    def __call__(self, texts):
        self.calls.append([list(text) for text in texts])
        return [self.model(text) for text in texts]


def as_beams(value):
    """Lists of tokens and sums, comparable; or what it is instead."""
    if not isinstance(value, list):
        return f"a {type(value).__name__}"
    return [[as_tokens(tokens), round(float(total), 5)] for tokens, total in value]


def search(engine: Engine, check: Check, model, prompt, width, max_tokens, eos, text):
    """One search; what came back, and how often the engine was asked."""
    check.step(f"{text}: prompt {prompt}, width={width}, steps={max_tokens}, eos={sorted(eos)}")
    ask, given = Asked(model), list(prompt)
    got = as_beams(engine.get("labs:beam_search")(ask, given, width, max_tokens, frozenset(eos)))
    check.equal("the prompt afterwards", given, list(prompt), CHANGED)
    return got, ask.calls


def says_beams(model, prompt, width, steps, eos):
    """Which mistake makes this answer."""

    def says(got):
        if isinstance(got, str):
            return f"It returns {got}; asked for is a list of pairs."
        if any(isinstance(tokens, str) for tokens, _ in got):
            return "Each pair is a list of token ids and their sum."
        if got and all(tokens[: len(prompt)] == list(prompt) for tokens, _ in got):
            return "The tokens of the prompt are among those of the beams."
        return says_tokens(got, steps, eos) or says_sums(model, prompt, got) or says_choice(model, prompt, got)

    def says_choice(model, prompt, got):
        if len(got) > width:
            return f"It returns {len(got)}; the {width} most likely are asked for (width={width})."
        expected = expected_beams(model, prompt, width, steps, eos)
        for tokens, total in expected:
            worse = [other for other, sum_ in got if sum_ < total]
            if [tokens, total] not in got and worse:
                what = f"{tokens} is missing, and {worse[-1]}, which is less likely, is there."
                ended = tokens[-1] in eos and worse[-1][-1] not in eos
                open_ = tokens[-1] not in eos and all(other[-1] in eos for other, _ in got)
                return what + (
                    " What has ended is compared with what goes on, whenever it ended." if ended
                    else " What has not ended is compared with what has." if open_
                    else " In each step the most likely sums of all beams together go on."
                )  # fmt: skip
        if len(got) < len(expected):
            return f"It returns {len(got)}, and {len(expected)} can be found: a beam may have several continuations."
        for tokens, total in got:
            if [tokens, total] not in expected:
                return f"{tokens} can be found only with more than {width} beams: its beginning was not among the best."
        return None

    return says


def says_tokens(got, steps, eos):
    """What is wrong with the tokens themselves."""
    for tokens, _ in got:
        if any(token in eos for token in tokens[:-1]):
            return "Something stands behind an end token: a continuation that is done was continued."
        if len(tokens) > steps:
            return f"{tokens} has more tokens than there are steps, {steps}."
        if len(tokens) < steps and (not tokens or tokens[-1] not in eos):
            return f"{tokens} is not complete: it has no end token at its end, and fewer than {steps} tokens (steps)."
    return None


def says_sums(model, prompt, got):
    """What is wrong with the numbers, or with the order that they say."""
    for tokens, total in got:
        rows = [model([*prompt, *tokens[:i]]) for i in range(len(tokens))]
        right = sum(row.get(i, -math.inf) for row, i in zip(rows, tokens, strict=True))
        if not math.isclose(right, total, abs_tol=1e-3):
            return f"Beside {tokens} stands {total:.5f}. The log-probabilities of its tokens add up to {right:.5f}."
    totals = [total for _, total in got]
    if totals == sorted(totals, reverse=True):
        return None
    means = [total / len(tokens) for tokens, total in got]
    if len({len(tokens) for tokens, _ in got}) > 1 and means == sorted(means, reverse=True):
        return "They are in the order of their mean per token. What counts is the sum, of short ones and of long ones."
    return "They are not in order: the most likely comes first."


@case("ch18.beam_search")
def the_better_first_word(engine, check):
    """Token 1 is the likelier beginning, and what follows it is unlikely. After token 2 all is sure."""
    log = {a: math.log(a / 100) for a in (60, 40, 55, 45, 90, 10)}
    after = {9: {1: log[60], 2: log[40]}, 1: {3: log[55], 4: log[45]}, 2: {5: log[90], 6: log[10]}}

    def model(text):
        return dict(after.get(text[-1], {7: log[60], 8: log[40]}))  # for those who ask too often

    for width in (2, 1):
        got, _ = search(engine, check, model, [9], width, 2, {0}, "search")
        expected = [[[2, 5], round(log[40] + log[90], 5)], [[1, 3], round(log[60] + log[55], 5)]]
        expected = expected if width == 2 else expected[1:]
        check.equal(f"the best {width}", got, expected, says_beams(model, [9], width, 2, {0}))


@case("ch18.beam_search")
def one_that_ends(engine, check):
    """A continuation ends at once, and is more likely than all others. Others go on beside it."""
    log = {a: round(math.log(a / 100), 4) for a in (50, 30, 20, 70, 60, 40)}
    after = {9: {0: log[50], 1: log[30], 2: log[20]}, 1: {1: log[70], 0: log[30]}, 2: {2: log[60], 0: log[40]}}
    after[0] = {1: log[70], 2: log[30]}

    def model(text):
        return dict(after.get(text[-1], after[0]))

    for width in (2, 1):
        got, calls = search(engine, check, model, [9], width, 2, {0}, "search")
        expected = expected_beams(model, [9], width, 2, {0})
        check.equal(f"the best {width}", got, expected, says_beams(model, [9], width, 2, {0}))
        going_on = [[9, 1], [9, 2]][:width]
        check.equal("what is asked in the second step", calls[1:], [going_on], says_second(going_on))


def says_second(expected):
    def says(got):
        if not got:
            return "Nothing is asked in the second step, though others still go on beside what is done."
        if any(0 in text for text in got[0]):
            return "The continuation that ended is continued."
        if len(got[0]) < len(expected):
            return "What has ended takes a place among the beams: those of the next step are the best that go on."
        return None

    return says


@case("ch18.beam_search")
def wide_enough_for_everything(engine, check):
    """So many beams that nothing is lost: it has to find the most likely of all continuations."""
    for seed, eos in ((1, set()), (2, {0}), (3, {0, 2})):
        model, prompt = model_of(seed, 4), [1, 3]
        width = 4**4
        found = all_beams(model, prompt, 4, eos)
        whole = [b for b in found if b and (b[-1] in eos or len(b) == 4)]
        expected = [[list(b), round(found[b], 5)] for b in sorted(whole, key=found.get, reverse=True)]
        got, _ = search(engine, check, model, prompt, width, 4, eos, "search among all")
        says = says_beams(model, prompt, width, 4, eos)
        check.equal("how many", len(got), len(expected), partial(says_number, got, eos))
        check.equal("the best 5", got[:5], expected[:5], partial(says_all, says, got))
        check.true("all others as well", got == expected)


def says_all(says, got, _):
    """What all of them say, and not only the best five that are shown."""
    return says(got)


def says_number(got, eos, count):
    if isinstance(got, str):
        return f"It returns {got}; asked for is a list of pairs."
    if (wrong := says_tokens(got, 4, eos)) is not None:
        return wrong
    return f"{count} come back. With so many beams, no continuation has to be given up."


@case("ch18.beam_search")
def a_single_beam(engine, check):
    """With one beam and no end token it is the greedy text."""
    for seed in (4, 5, 6):
        model, text = model_of(seed, 5), [2]
        for _ in range(6):
            chances = model(text)
            text.append(max(chances, key=chances.get))
        got, _ = search(engine, check, model, [2], 1, 6, set(), "search")
        tokens = [beam[0] for beam in got] if isinstance(got, list) else got
        check.equal("the tokens", tokens, [text[1:]])


@case("ch18.beam_search")
def how_the_engine_is_asked(engine, check):
    """All beams of a step run as one batch. Where all is done, nobody is asked any more."""
    model = model_of(7, 5)
    got, calls = search(engine, check, model, [3], 3, 5, set(), "search")
    sizes = [len(call) for call in calls]
    check.equal("texts in each question", sizes, [1, 3, 3, 3, 3], says_sizes)
    lengths = [sorted({len(text) for text in call}) for call in calls]
    check.equal("tokens of these texts", lengths, [[1], [2], [3], [4], [5]],
                "A text that is asked about is the prompt with all tokens of the beam, in every step.")  # fmt: skip
    ends = {2: {0: -0.5}, 0: {0: -0.5}}
    got, calls = search(engine, check, lambda text: dict(ends[text[-1]]), [2], 2, 4, {0}, "a model that ends at once")
    says = says_beams(lambda text: ends[text[-1]], [2], 2, 4, {0})
    check.equal("what comes back", got, [[[0], -0.5]], says)
    check.equal("questions", calls, [[[2]]], "After the first step all is done, and the engine is asked again.")


def says_sizes(got):
    if len(got) > 5 and set(got) == {1}:
        return "Each beam is a question of its own. One question about all of them is one batch, and one step."
    if len(got) == 5 and max(got) > 3:
        return "More texts are asked about than there are beams: of all continuations, only the best go on."
    return None


@case("ch18.beam_search")
def fewer_than_wanted(engine, check):
    """The model names one or two tokens, so that at first there are fewer continuations than beams."""
    for seed in (8, 9):
        model = named(model_of(seed, 5), 1 + seed % 2)
        got, _ = search(engine, check, model, [1], 6, 3, set(), "search")
        says = says_beams(model, [1], 6, 3, set())
        check.equal("the best", got, expected_beams(model, [1], 6, 3, set()), says)


@case("ch18.beam_search")
def random_models(engine, check):
    """Random small models, prompts, widths and end tokens, beside a search through everything."""
    for seed in range(10, 34):
        rng = random.Random(seed)
        size = rng.randint(3, 4)
        model = named(model_of(seed, size), rng.randint(2, size))
        eos = set(rng.sample(range(size), rng.randint(0, 2)))
        prompt = [rng.randrange(size) for _ in range(rng.randint(1, 3))]
        width, max_tokens = rng.randint(1, 4), rng.randint(1, 4)
        got, _ = search(engine, check, model, prompt, width, max_tokens, eos, f"model {seed}")
        says = says_beams(model, prompt, width, max_tokens, eos)
        check.equal("the best", got, expected_beams(model, prompt, width, max_tokens, eos), says)


@case("ch18.beam_search")
def the_bundled_model(engine, check):
    """qwen3-tiny, through an engine; beside `LLM.beam_search`, whose scores are sums with length_penalty=0."""
    package = engine.package.load()
    options = {"device": "cpu", "kvcache_block_size": 4, "num_kvcache_blocks": 128, "max_model_len": 64}
    with package.LLM("qwen3-tiny", **options) as llm:
        prompt, width, eos = llm.tokenizer.encode("One day, a fox"), 3, llm.config.eos
        one = package.SamplingParams(temperature=0, max_tokens=1, logprobs=2 * width)

        def ask(texts):
            return [answer["logprobs"][0] for answer in llm.generate(texts, one, use_tqdm=False)]

        check.step(f"search for 8 tokens with width={width}")
        got = as_beams(engine.get("labs:beam_search")(ask, list(prompt), width, 8, set(eos)))
        params = package.BeamSearchParams(beam_width=width, max_tokens=8, length_penalty=0)
        (ours,) = llm.beam_search([prompt], params)
    check.equal("the texts", [tokens for tokens, _ in got], [beam.tokens[len(prompt) :] for beam in ours.sequences])
    apart = max(abs(total - beam.cum_logprob) for (_, total), beam in zip(got, ours.sequences, strict=True))
    check.true("their log-probabilities", apart < 1e-3)


# propose


def proposed(engine: Engine, check: Check, token_ids, n, k):
    """What it proposes; the text stays as it is."""
    check.step(f"propose({token_ids}, n={n}, k={k})")
    given = list(token_ids)
    got = as_tokens(engine.get("labs:propose")(given, n, k))
    check.equal("the text afterwards", given, list(token_ids), CHANGED)
    return got


def searched(token_ids, n, k):
    """By searching in strings."""
    text = "".join(map(chr, token_ids))
    start = text[:-1].rfind(text[-n:]) if len(text) > n else -1
    return [] if start < 0 else [ord(c) for c in text[start + n : start + n + k]]


def says_propose(token_ids, n, k):
    """Which mistake makes this answer."""

    def says(got):
        if isinstance(got, str):
            return f"It returns {got}; asked for is a list of tokens."
        right, tail = searched(token_ids, n, k), token_ids[-n:]
        starts = [i for i in range(len(token_ids) - n) if token_ids[i : i + n] == tail]
        if len(got) > k:
            return f"It proposes {len(got)} tokens, and at most k={k} are wanted."
        if got == [] and right:
            few = f", fewer than k={k}, and that is enough" if len(right) < k else ""
            counts = f"What stands there is {tail}, from place {starts[-1]} on (counted from 0)"
            return f"It proposes nothing. {counts}, and {len(right)} followed{few}."
        if right and len(got) > len(right) and got[: len(right)] == right:
            return f"Only {len(right)} tokens followed there: the text ends before k={k}."
        if starts and got and got == token_ids[starts[-1] : starts[-1] + k]:
            return "What is proposed begins with the tokens that were looked for, and the text has these already."
        if any(got == token_ids[i + n : i + n + k] for i in starts[:-1]):
            return "There are several such places, and the latest counts."
        if right and got and got == token_ids[starts[-1] + n + 1 :][:k]:
            return "The first token that followed is left out."
        if right and len(got) < len(right) and got == right[: len(got)]:
            return f"It proposes {len(got)}; {len(right)} tokens followed there, and k={k}."
        if got and not right:
            return f"The last {n} tokens stand nowhere else in this text, all of them and in this order."
        return None

    return says


@case("ch18.propose")
def a_place_before(engine, check):
    """The last two tokens stood in the text once before, and something followed."""
    text = [5, 6, 7, 8, 9, 1, 6, 7]
    check.equal("proposed", proposed(engine, check, text, 2, 3), [8, 9, 1], says_propose(text, 2, 3))
    check.equal("proposed", proposed(engine, check, text, 2, 1), [8], says_propose(text, 2, 1))


@case("ch18.propose")
def first_and_last_places(engine, check):
    """The place is the very beginning of the text, or just before its end."""
    for text, n in (([6, 7, 8, 6, 7], 2), ([5, 1, 7, 7], 1)):
        check.equal("proposed", proposed(engine, check, text, n, 1), searched(text, n, 1), says_propose(text, n, 1))


@case("ch18.propose")
def no_place_before(engine, check):
    """The last tokens are new, or only some of them stood there before, or in another order."""
    for text, n in (([1, 2, 3, 4], 2), ([1, 4, 2, 3, 4], 2), ([4, 3, 2, 3, 4], 2), ([3, 1, 4, 2, 3, 4], 3)):
        check.equal("proposed", proposed(engine, check, text, n, 3), [], says_propose(text, n, 3))


@case("ch18.propose")
def several_places(engine, check):
    """The last token stood there three times, and went on differently each time."""
    text = [7, 1, 2, 7, 3, 4, 7, 5, 6, 7]
    check.equal("proposed", proposed(engine, check, text, 1, 2), [5, 6], says_propose(text, 1, 2))


@case("ch18.propose")
def fewer_than_k(engine, check):
    """After the place that counts the text is soon at its end."""
    text = [9, 3, 4, 3, 4]
    check.equal("proposed", proposed(engine, check, text, 2, 6), [3, 4], says_propose(text, 2, 6))


@case("ch18.propose")
def places_that_overlap(engine, check):
    """The same token again and again: the place before overlaps with the end."""
    for text, n, wanted in (([3, 7, 7, 7], 2, [7]), ([1, 2, 1, 2, 1], 3, [2, 1]), ([7, 7], 1, [7])):
        check.equal("proposed", proposed(engine, check, text, n, 4), wanted, says_overlap)


def says_overlap(got):
    return "The place before may overlap with the end: only the end itself is left out." if got == [] else None


@case("ch18.propose")
def short_texts(engine, check):
    """Texts with no more tokens than are looked for."""
    for text, n in (([3], 1), ([3, 3], 2), ([3], 2), ([3, 4], 5)):
        check.equal("proposed", proposed(engine, check, text, n, 2), [], says_propose(text, n, 2))


@case("ch18.propose")
def random_texts(engine, check):
    """Random texts of few different tokens, beside a search in strings."""
    for seed in range(60):
        rng = random.Random(seed)
        text = [rng.randrange(1, 5) for _ in range(rng.randint(1, 30))]
        n, k = rng.randint(1, 4), rng.randint(1, 5)
        check.equal("proposed", proposed(engine, check, text, n, k), searched(text, n, k), says_propose(text, n, k))


# accept


def accepted(engine: Engine, check: Check, draft, choices, eos=()):
    """What it adds; both lists stay as they are."""
    check.step(f"accept({draft}, {choices}, eos={sorted(eos)})")
    given = list(draft), list(choices)
    got = as_tokens(engine.get("labs:accept")(*given, frozenset(eos)))
    check.equal("draft and choices afterwards", given, (list(draft), list(choices)), CHANGED)
    return got


def says_accept(draft, choices, eos=()):
    """Which mistake makes this answer."""

    def says(got):
        agree = next((i for i, d in enumerate(draft) if d != choices[i]), len(draft))
        if isinstance(got, str):
            return f"It returns {got}; asked for is a list of tokens."
        if any(token in eos for token in got[:-1]):
            return "Something is added behind an end token."
        if got == draft[:agree]:
            return "The model's own token behind the accepted ones is missing: it comes from the same call."
        if got == draft[: agree + 1] and agree < len(draft):
            return "Where the draft differs from the model's choice, the choice counts."
        if got[: agree + 1] != choices[: agree + 1][: len(got)]:
            return "What is added are the model's choices from the first on, in order, and none is left out."
        if len(got) > agree + 1:
            return "What stands behind a wrong token of the draft was chosen for another text: it is worth nothing."
        if got == choices[:1] and agree:
            return "More is known: where the draft begins right, so does what the model says behind it."
        return None

    return says


def check_accept(engine, check, draft, choices, expected, eos=()):
    check.equal("added", accepted(engine, check, draft, choices, eos), expected, says_accept(draft, choices, eos))


@case("ch18.accept")
def nothing_is_right(engine, check):
    """The first token of the draft is not the model's. Its own is known all the same."""
    check_accept(engine, check, [4, 5], [3, 6, 7], [3])


@case("ch18.accept")
def all_is_right(engine, check):
    """The whole draft is what the model would have written; one token more is known."""
    check_accept(engine, check, [4, 5, 6], [4, 5, 6, 7], [4, 5, 6, 7])


@case("ch18.accept")
def the_beginning_is_right(engine, check):
    """Two tokens agree, the third does not."""
    check_accept(engine, check, [4, 5, 6, 8], [4, 5, 7, 9, 2], [4, 5, 7])


@case("ch18.accept")
def right_again_later(engine, check):
    """The second token is wrong. What agrees behind it was written for another text."""
    check_accept(engine, check, [4, 5, 6], [4, 1, 6, 7], [4, 1])
    check_accept(engine, check, [5, 5, 5], [1, 5, 5, 5], [1])


@case("ch18.accept")
def no_draft(engine, check):
    """Nothing was proposed: it is a decode step like any other."""
    check_accept(engine, check, [], [3], [3])
    check_accept(engine, check, [], [0], [0], {0})


@case("ch18.accept")
def the_text_ends(engine, check):
    """The model ends the text in the middle of the draft, in place of it, and behind it."""
    check_accept(engine, check, [4, 0, 6], [4, 0, 6, 7], [4, 0], {0})
    check_accept(engine, check, [4, 5, 6], [4, 0, 6, 7], [4, 0], {0})
    check_accept(engine, check, [4, 5], [4, 5, 2], [4, 5, 2], {0, 2})
    check_accept(engine, check, [2, 0], [2, 0, 3], [2], {0, 2})


@case("ch18.accept")
def random_drafts(engine, check):
    """A made-up model writes whole texts, with drafts that are sometimes right: greedy would write the same."""
    for seed in range(30):
        rng = random.Random(seed)
        eos, answer = {0}, []

        def choice(text, seed=seed):
            return random.Random(f"{seed} {text}").randrange(6)

        plain = []
        while len(plain) < 20 and plain[-1:] != [0]:
            plain.append(choice(plain))
        calls = 0
        while len(answer) < len(plain) and calls < 40:
            draft = [t if rng.random() < 0.7 else rng.randrange(6) for t in plain[len(answer) :][: rng.randrange(5)]]
            choices = [choice(answer + draft[:i]) for i in range(len(draft) + 1)]
            got = accepted(engine, check, draft, choices, eos)
            count = next((i for i, d in enumerate(draft) if d != choices[i]), len(draft)) + 1
            wanted = choices[:count]
            wanted = wanted[: wanted.index(0) + 1] if 0 in wanted else wanted
            if not check.equal("added", got, wanted, says_accept(draft, choices, eos)):
                return
            answer, calls = answer + got, calls + 1


@case("ch18.accept")
def the_bundled_model_writes(engine, check):
    """qwen3-tiny with drafts of all kinds: its text is that of plain greedy decoding, token by token."""
    package, accept = engine.package.load(), engine.get("labs:accept")
    with package.LLM("qwen3-tiny", **draft_work.OPTIONS) as llm:
        prompt = llm.tokenizer.encode("Once upon a time")
        greedy = package.SamplingParams(temperature=0, max_tokens=24)
        plain = list(llm.generate([prompt], greedy, use_tqdm=False)[0]["token_ids"])
        whole = [*prompt, *plain]
        drafts = {
            "no drafts": lambda text: [],
            "wrong drafts": lambda text: [7, 7, 7],
            "drafts that are right": lambda text: whole[len(text) : len(text) + 3],
            "drafts with a wrong end": lambda text: [*whole[len(text) : len(text) + 2], 7],
        }
        for name, propose in drafts.items():
            check.step(f"write 24 tokens with {name}")
            calls = draft_work.speculate(llm, prompt, propose, accept, 24)
            check.equal("the text", draft_work.answer_of(calls), plain, "The text is another one than without drafts.")
            most = {"no drafts": 24, "wrong drafts": 24, "drafts that are right": 6, "drafts with a wrong end": 8}
            says = "More calls are made than needed: not all that a call tells is added."
            check.equal("calls of the model", len(calls), most[name], says)


# my_proposer: an open exercise


def made(engine: Engine, check: Check, texts):
    """A proposer that has read these texts; what was handed in stays as it is."""
    given = [list(text) for text in texts]
    propose = engine.get("labs:my_proposer")(given)
    check.true("the texts are as they were", given == [list(text) for text in texts], CHANGED)
    says = "It returns no function: `my_proposer` makes a proposer, which is called later."
    return propose if check.true("what comes back can be called", callable(propose), says) else None


def says_draft(got):
    return f"A proposer gives a list of token ids, maybe an empty one, and this one gave {got}."


@case("ch18.my_proposer")
def few_calls(engine, check):
    """16 stories that it has not seen: how many tokens a call of the model adds."""
    check.step("read the 32 texts")
    propose = made(engine, check, draft_work.seen())
    if propose is None:
        return
    check.step("write the 16 stories")
    start, calls = time.process_time(), []
    for prompt, answer in draft_work.held_out():
        calls += draft_work.replay(prompt, answer, propose)
    seconds = (time.process_time() - start) / len(calls)
    drafted, right = sum(len(call.draft) for call in calls), sum(len(call.added) - 1 for call in calls)
    found = draft_work.tokens_per_call(calls)
    check.measured(f"{found:.2f} tokens a call; {right} of {drafted} proposed tokens were right")
    says = (
        "It is not enough yet. What do the last two or three tokens say, if one has read all the texts? And where "
        "these never stood together, what does the last one say?"
    )
    check.true(f"at least {draft_work.BAR} tokens a call", found >= draft_work.BAR, says)
    says = f"It takes {1000 * seconds:.0f} ms a call. What can be counted once, when the texts are read?"
    check.true("at most 10 ms before a call", seconds <= 0.010, says)


@case("ch18.my_proposer")
def any_text(engine, check):
    """Texts of one token, tokens that nobody has seen, and a proposer that has read nothing, or next to nothing."""
    for texts in (draft_work.seen(), [], [[5]], [[], [5, 6]], [[5, 5, 5, 5]]):
        check.step(f"read {len(texts)} texts")
        propose = made(engine, check, texts)
        if propose is None:
            return
        for text in ([5], [5, 5], [1999], [6, 7, 8], [2000, 5] * 20, list(range(3, 90))):
            check.step(f"propose for a text of {len(text)} tokens, after {len(texts)} texts")
            given = list(text)
            got = propose(given)
            check.equal("the text afterwards", given, text, CHANGED)
            is_draft = isinstance(got, list) and all(isinstance(i, int) for i in got)
            check.equal("what it gives", "a list" if is_draft else repr(got)[:60], "a list", says_draft)


@case("ch18.my_proposer")
def two_proposers(engine, check):
    """Two that have read different texts: neither knows of the other's."""
    check.step("read one text each, and ask both in turn")
    texts = [[5, 6, 7, 8] * 3], [[5, 9, 10, 11] * 3]
    first, second = (made(engine, check, some) for some in texts)
    if first is None or second is None:
        return
    for propose, other in ((first, {9, 10, 11}), (second, {6, 7, 8})):
        got = propose([1, 5])
        check.true(
            "nothing of what only the other has read", not other & set(got), "It proposes what another has read."
        )
