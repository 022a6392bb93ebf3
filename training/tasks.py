"""Exact tasks in chat form: every example knows its right answer and how to check a model's answer.

Two splits keep the evaluation honest. A phrasing (the request with its operands taken out) or an operand (the
numbers of a sum, the word of a spelling) is held out by a hash of itself: it never appears in the training data,
and the test examples use nothing else. See `phrase` and `operand`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from . import facts
from . import words as w
from .phrases import expand, held_out
from .stories import asked_story

Message = dict[str, str]
TEST_TASKS_BY_OPERAND = ("sum", "difference", "spelling", "reversing", "letter count", "counting", "counting down",
                         "counting in steps", "first or last letter", "even or odd", "larger number", "word problem", "repeating")


@dataclass
class Example:
    """A conversation whose last answer is known.

    `check` says how an answer is judged: "exact" (one of `accept`), "number" (the last number is `core`),
    "numbers" (the numbers after the verb are exactly `core`), "letters" (the spelled letters are `core`) or
    "contains" (`core` appears).
    """

    task: str
    messages: list[Message]
    core: str
    check: str
    accept: tuple[str, ...] = ()


def user(text: str) -> Message:
    """A message of the user."""
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    """A message of the assistant."""
    return {"role": "assistant", "content": text}


def single(task: str, question: str, answer: str, core: str, check: str, accept: tuple[str, ...] = ()) -> Example:
    """A conversation of one question and one answer."""
    return Example(task, [user(question), assistant(answer)], core, check, accept or (answer,))


POLITE = "{|||||please |can you |could you |would you |i want you to |i would like you to |now |ok, |hello, }"
QUESTION = "{|||||hello, |hi, |please tell me, |tell me, |i have a question: |quick question: |ok, |and |so, }"
QUESTION_WORDS = ("what", "which", "who", "how", "where", "when", "why", "can", "could", "would", "is", "are", "do", "does", "in ")


def style(rng: random.Random, text: str) -> str:
    """The request as people type it: with or without a capital letter and final punctuation."""
    body = re.sub(r"^(hello|hi|ok|so|and|please tell me|tell me|now|please)[,:]? ", "", text)
    if body.startswith(QUESTION_WORDS):
        text += rng.choice("? ? ?  ".split(" "))
    else:
        text += rng.choice(("", "", ".", ".", ".", "!"))
    return text[0].upper() + text[1:] if rng.random() < 0.55 else text


def phrase(rng: random.Random, template: str, test: bool, **slots: object) -> str:
    """A phrasing of the template from the wanted split, with its slots filled and its style drawn."""
    blanks = {name: f"<{name}>" for name in slots}
    for _ in range(500):
        raw = expand(rng, template, blanks)
        if held_out("phrasing", raw) == test:
            for name, value in slots.items():
                raw = raw.replace(f"<{name}>", str(value))
            return style(rng, raw)
    raise ValueError(f"no {'held-out' if test else 'training'} phrasing in {template!r}")


def operand(draw: Callable[[], tuple], task: str, test: bool) -> tuple:
    """Draw operands until they belong to the wanted split."""
    while True:
        values = draw()
        if held_out(task, *values) == test:
            return values


# --- numbers --------------------------------------------------------------------------------------------------


def primes_below(n: int) -> list[int]:
    """The primes smaller than n."""
    return [p for p in range(2, n) if all(p % d for d in range(2, int(p**0.5) + 1))]


def join(numbers: list[int]) -> str:
    """ "1, 2, 3" for [1, 2, 3]."""
    return ", ".join(map(str, numbers))


def _size(rng: random.Random) -> int:
    return rng.randrange(10 ** rng.choice((1, 2, 2, 3, 3, 3)))


LIST = "{list|list|name|give me|show me|write down|print|write|tell me|what are|enumerate|i need|find} "
BELOW = "{below|within|under|up to|less than|smaller than|until|from 1 to|between 1 and|not larger than} [n]"


def number_list(rng: random.Random, test: bool) -> Example:
    """Lists of primes, even, odd and square numbers and of multiples, bounded by value or by count."""
    kind = rng.choice(("primes", "primes", "primes", "first primes", "even", "odd", "squares", "multiples"))
    pre = "{|||please |can you |could you }"
    if kind == "primes":
        n = rng.choice((10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 100, 100, 100, 100, 120, 150, 200))
        name = "{all |all the |the ||all of the |every one of the }{prime numbers|primes|prime numbers}"
        numbers, said = primes_below(n), f"The prime numbers up to {n} are "
        question = phrase(rng, pre + LIST + name + " " + BELOW, test, n=n)
        return single("primes", question, said + join(numbers) + ".", join(numbers), "numbers")
    if kind == "first primes":
        n = rng.randint(2, 25)
        numbers, said = primes_below(100)[:n], f"The first {n} prime numbers are "
        question = phrase(rng, pre + LIST + "{the first|the|the very first} [n] {prime numbers|primes|smallest primes|smallest prime numbers}", test, n=n)
        return single("primes", question, said + join(numbers) + ".", join(numbers), "numbers")
    if kind == "multiples":
        m, n = rng.randint(2, 12), rng.randint(3, 12)
        numbers, said = [m * i for i in range(1, n + 1)], f"The first {n} multiples of {m} are "
        question = phrase(rng, pre + LIST + "{the first|the} [n] {multiples|smallest multiples} of [m]", test, n=n, m=m)
        return single("number lists", question, said + join(numbers) + ".", join(numbers), "numbers")
    n = rng.choice((10, 12, 16, 20, 24, 30, 36, 40, 50))
    name = {"even": "even", "odd": "odd", "squares": "square"}[kind]
    if kind == "squares":
        n = rng.choice((10, 20, 30, 50, 64, 100, 144, 200))
        numbers = [i * i for i in range(1, 15) if i * i <= n]
    else:
        numbers = list(range(2 if kind == "even" else 1, n + 1, 2))
    question = phrase(rng, pre + LIST + "{all |all the |the |}" + name + " numbers {within|up to|until|from 1 to|between 1 and|not larger than} [n]",
                      test, n=n)
    return single("number lists", question, f"The {name} numbers up to {n} are {join(numbers)}.", join(numbers), "numbers")


def counting(rng: random.Random, test: bool) -> Example:
    """Counting up, down and in steps between held-out bounds."""
    kind = rng.choice(("counting", "counting", "counting down", "counting in steps"))
    step = rng.choice((2, 3, 5, 10)) if kind == "counting in steps" else 1
    start, _, length = operand(lambda: (rng.choice((0, 1, 1, step, rng.randrange(100))), step, rng.randint(2, 25)), kind, test)
    numbers = [start + i * step for i in range(length)]
    if kind == "counting down":
        numbers.reverse()
    a, b = numbers[0], numbers[-1]
    verb = {"counting": "{count|count up|list the numbers|say the numbers|write the numbers|list all numbers|give me the numbers|keep counting}",
            "counting down": "{count down|count backwards|list the numbers backwards|say the numbers backwards|do a countdown|write a countdown}",
            "counting in steps": f"{{count by {step}s|count in steps of {step}|count in {step}s|go up by {step}|skip count by {step}}}"}[kind]
    question = phrase(rng, POLITE + verb + " from [a] {to|until|up to|as far as}".replace("up to", "to") + " [b]", test, a=a, b=b)
    return single(kind, question, join(numbers), join(numbers), "numbers")


PLUS = """
{what is|calculate|compute|what does|how much is|add up|tell me|work out|what is the result of|find|evaluate|can you compute|please compute|solve} {[a] + [b]|[a]+[b]|[a] plus [b]}
{what is the sum of|add|the sum of|compute the sum of|please add|can you add|give me the sum of|find the sum of} [a] and [b]
{|what's |hello, what is |ok, what is |so what is |and what is }{[a] + [b]|[a]+[b]|[a] plus [b]}
"""
MINUS = """
{what is|calculate|compute|how much is|tell me|work out|what is the result of|find|evaluate|can you compute|please compute|solve} {[a] - [b]|[a]-[b]|[a] minus [b]}
{subtract|take away|please subtract|can you subtract|take} [b] from [a]
{|what's |hello, what is |ok, what is |so what is |and what is }{[a] - [b]|[a]-[b]|[a] minus [b]}
"""
TIMES = """
{what is|calculate|compute|how much is|tell me|work out|what is the result of|find|evaluate|can you compute|please compute} {[a] * [b]|[a] x [b]|[a] times [b]}
{multiply|please multiply|can you multiply|the product of|what is the product of} [a] and [b]
{|what's |hello, what is |ok, what is |so what is |and what is }{[a] * [b]|[a] x [b]|[a] times [b]}
"""


def arithmetic(rng: random.Random, test: bool) -> Example:
    """Sums and differences of up to three digits, products up to 12 times 12."""
    kind = rng.choice(("sum", "sum", "sum", "difference", "difference", "product"))
    if kind == "sum":
        a, b = operand(lambda: (_size(rng), _size(rng)), "sum", test)
        return single("sum", phrase(rng, PLUS, test, a=a, b=b), f"{a} + {b} = {a + b}", str(a + b), "number")
    if kind == "difference":
        b, a = operand(lambda: tuple(sorted((_size(rng), _size(rng)))), "difference", test)
        return single("difference", phrase(rng, MINUS, test, a=a, b=b), f"{a} - {b} = {a - b}", str(a - b), "number")
    a, b = rng.randint(0, 12), rng.randint(0, 12)
    return single("product", phrase(rng, TIMES, test, a=a, b=b), f"{a} * {b} = {a * b}", str(a * b), "number")


GAIN = "{gets|finds|buys|is given|receives|picks} [b] more"
LOSS = "{gives away|loses|eats|sells|uses} [b] {of them|}"
HOW_MANY = "{how many are there now|how many {[things]|} does [name] have now|how many [things] are there|how many is that}"


def word_problem(rng: random.Random, test: bool) -> Example:
    """A sum or difference up to 40 as a story of two sentences."""
    things = rng.choice("apples coins marbles books shells stones flowers buttons stamps nuts cookies pencils".split())
    name = rng.choice(w.GIRLS + w.BOYS)
    plus = rng.random() < 0.5
    a, b = operand(lambda: tuple(sorted((rng.randint(1, 20), rng.randint(1, 20)), reverse=True)), "word problem", test)
    template = "{|there is a child named [name]. |here is a problem: |solve this: }[name] has [a] [things]{ and | and then |. then [name] }" \
        + (GAIN if plus else LOSS) + ". " + HOW_MANY
    question = phrase(rng, template, test, name=name, things=things, a=a, b=b).replace(" .", ".").replace("many  does", "many does")
    if not question.endswith("?"):
        question = question.rstrip(".!") + "?"
    result = a + b if plus else a - b
    return single("word problem", question, f"{a} {'+' if plus else '-'} {b} = {result}", str(result), "number")


def about_numbers(rng: random.Random, test: bool) -> Example:
    """Even or odd, prime or not, the larger of two, the neighbor of a number."""
    kind = rng.choice(("even or odd", "prime or not", "larger number", "next number"))
    if kind == "even or odd":
        (n,) = operand(lambda: (_size(rng),), kind, test)
        word = "even" if n % 2 == 0 else "odd"
        template = QUESTION + "{is [n] even or odd|is [n] odd or even|is the number [n] even or odd|is [n] an even number or an odd number|what is [n], even or odd|even or odd: [n]}"
        return single(kind, phrase(rng, template, test, n=n), f"{n} is {word}.", f"is {word}", "contains")
    if kind == "prime or not":
        n = rng.randint(2, 100)
        said = f"{n} is a prime number." if n in primes_below(101) else f"{n} is not a prime number."
        template = QUESTION + "{is [n] prime|is [n] a prime|is [n] a prime number|is the number [n] prime|is [n] prime or not|is it true that [n] is prime}"
        return single(kind, phrase(rng, template, test, n=n), said, said, "exact")
    if kind == "larger number":
        a, b = operand(lambda: (_size(rng), _size(rng)), kind, test)
        if a == b:
            b += 1
        large = rng.random() < 0.6
        word = "{larger|bigger|greater|higher}" if large else "{smaller|lower|less}"
        template = QUESTION + "{which is " + word + "|which number is " + word + "|what is " + word + "|which one is " + word \
            + "}{, |: | of }[a] {or|and} [b]"
        pick, said = (max(a, b), "larger") if large else (min(a, b), "smaller")
        return single(kind, phrase(rng, template, test, a=a, b=b), f"{pick} is {said}.", str(pick), "number")
    n = rng.randrange(1, 1000)
    after = rng.random() < 0.5
    template = QUESTION + ("{what comes after [n]|which number comes after [n]|what is the number after [n]|what number follows [n]|what is the next number after [n]}"
                           if after else "{what comes before [n]|which number comes before [n]|what is the number before [n]|what number is right before [n]}")
    m = n + 1 if after else n - 1
    return single(kind, phrase(rng, template, test, n=n), f"{m} comes {'after' if after else 'before'} {n}.", f"{m} comes", "contains")


# --- words ----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def vocabulary() -> tuple[str, ...]:
    """The words for spelling: the word lists and the words of the stories and explanations."""
    text = " ".join([*w.OBJECTS, *w.SPECIES, *w.CREATURES, *w.TRAITS, *w.COLORS, *w.LOOKS, *w.PLACES, *w.OPPOSITES,
                     *w.CAPITALS, *w.CAPITALS.values(), *w.DAYS, *w.MONTHS, *w.COMMON, *facts.TERMS, *facts.TERMS.values(),
                     *facts.FACTS.values(), *w.GIRLS, *w.BOYS, *w.PETS])
    rng = random.Random(0)
    text += " ".join(asked_story(rng)[1] for _ in range(500))
    return tuple(sorted({word for word in re.findall(r"[A-Za-z]{2,12}", text) if word[1:].islower()}))


def draw_word(rng: random.Random) -> str:
    """A word, a changed word (inflected, compound, cut, with letters added) or a made-up one; at most 12 letters.

    The changed words show the letters of every token in other surroundings, so that words that are held out as a
    whole can be spelled.
    """
    x = rng.random()
    word = rng.choice(vocabulary())
    letter = "abcdefghijklmnopqrstuvwxyz"
    if x < 0.12:
        word = w.pseudo_word(rng)
    elif x < 0.22:
        word += rng.choice(vocabulary()).lower()
    elif x < 0.28:
        word += rng.choice(("s", "ed", "ing", "er", "ly", "y", "ness"))
    elif x < 0.42:
        word += "".join(rng.choice(letter) for _ in range(rng.randint(1, 3)))
    elif x < 0.52:
        a, b = sorted(rng.sample(range(len(word) + 1), 2))
        word = word[a:b] + (rng.choice(letter) if b == a + 1 else "")
    elif x < 0.57:
        word = w.pseudo_name(rng)
    elif x < 0.61:
        word = "".join(rng.choice(letter) for _ in range(rng.randint(2, 7)))
    if rng.random() < 0.12:
        word = word.capitalize() if rng.random() < 0.5 else word.lower()
    return word if len(word) <= 12 else draw_word(rng)


QUOTED = "{[x]|[x]|[x]|\"[x]\"|'[x]'|the word [x]|the word \"[x]\"|the word '[x]'}"


def letters(word: str) -> str:
    """ "k - i - t - e" for "kite"."""
    return " - ".join(word)


def spelling(rng: random.Random, test: bool) -> Example:
    """Spelling, reversing, counting and picking letters; words are held out."""
    kind = rng.choice(("spelling", "spelling", "reversing", "reversing", "letter count", "first or last letter"))
    while True:
        x = draw_word(rng)
        if held_out("word", x.lower()) == test:
            break
    if kind == "spelling":
        template = POLITE + "{spell|spell out|write the letters of|say the letters of|list the letters of|spell for me|show me the spelling of|give me the letters of|split into letters:} " + QUOTED \
            + "\n" + QUESTION + "{how do you spell|how do i spell|how is it spelled:|what are the letters of|what is the spelling of} " + QUOTED
        return single(kind, phrase(rng, template, test, x=x), letters(x), letters(x), "letters")
    if kind == "reversing":
        template = POLITE + "{reverse|spell backwards|write backwards|turn around|spell in reverse|say backwards|reverse the letters of|write the letters backwards of|flip} " + QUOTED \
            + "\n" + QUESTION + "{what is " + QUOTED + " backwards|what is " + QUOTED + " spelled backwards|what is " + QUOTED + " in reverse|how do you spell " + QUOTED + " backwards}"
        return single(kind, phrase(rng, template, test, x=x), letters(x[::-1]), letters(x[::-1]), "letters")
    if kind == "letter count":
        template = QUESTION + "{how many letters are in|how many letters are there in|how many letters does it have:|what is the number of letters in|how long is|what is the length of} " + QUOTED \
            + "\n" + POLITE + "{count the letters of|count the letters in|tell me the number of letters in} " + QUOTED
        return single(kind, phrase(rng, template, test, x=x), f"{letters(x)}: {len(x)} letters", str(len(x)), "number")
    first = rng.random() < 0.5
    name = "first" if first else "last"
    template = QUESTION + f"{{what is the {name} letter of|which is the {name} letter of|which letter is the {name} one of|what is the {name} letter in}} " + QUOTED \
        + "\n" + POLITE + f"{{tell me the {name} letter of|give me the {name} letter of|name the {name} letter of}} " + QUOTED
    letter = x[0] if first else x[-1]
    return single(kind, phrase(rng, template, test, x=x), f"The {name} letter of {x} is {letter}.", f"is {letter}.", "contains")


def repeating(rng: random.Random, test: bool) -> Example:
    """Say again what the user says: a list of words or a sentence from a story."""
    def draw() -> tuple:
        if rng.random() < 0.5:
            return (", ".join(draw_word(rng) for _ in range(rng.randint(1, 6))),)
        return (rng.choice(re.findall(r"[A-Z][^.\"?]+\.", asked_story(rng)[1]) or ["Hello."]),)

    (x,) = operand(draw, "repeating", test)
    template = POLITE + "{repeat|repeat after me|say|say this|copy|copy this|write|write exactly this|echo|echo this|repeat this|repeat the following}: [x]"
    question = phrase(rng, template, test, x="<x>").split("<x>")[0] + x
    return single("repeating", question, x, x, "exact")


def word_facts(rng: random.Random, test: bool) -> Example:
    """Opposites, neighbors in the alphabet, days, months and seasons."""
    kind = rng.choice(("opposites", "days and months", "days and months", "alphabet"))
    if kind == "opposites":
        x = rng.choice(list(w.OPPOSITES))
        template = QUESTION + "{what is the opposite of|what's the opposite of|which word is the opposite of|what is the contrary of|which word means the opposite of} " + QUOTED \
            + "\n" + POLITE + "{name|give me|say|tell me|find} the {opposite|contrary} of " + QUOTED
        said = f"The opposite of {x} is {w.OPPOSITES[x]}."
        return single(kind, phrase(rng, template, test, x=x), said, said, "exact")
    cycle = rng.choice((w.DAYS, w.MONTHS, w.MONTHS, w.SEASONS)) if kind != "alphabet" else list("abcdefghijklmnopqrstuvwxyz")
    what = "letter" if kind == "alphabet" else {7: "day", 12: "month", 4: "season"}[len(cycle)]
    i, after = rng.randrange(len(cycle)), rng.random() < 0.5
    if kind == "alphabet":
        i = min(i, 24) if after else max(i, 1)
    x, y = cycle[i], cycle[(i + (1 if after else -1)) % len(cycle)]
    side = "after" if after else "before"
    template = QUESTION + f"{{what comes {side} [x]|which [what] comes {side} [x]|what [what] is {side} [x]|what is the [what] {side} [x]|which [what] is right {side} [x]|what [what] comes right {side} [x]}}" \
        + "\n" + POLITE + f"{{name|tell me|give me}} the [what] {side} [x]"
    question = phrase(rng, template, test, x=f"the letter {x}" if kind == "alphabet" and rng.random() < 0.5 else x, what=what)
    said = f"{y} comes {side} {x}."
    return single(kind, question, said, said, "exact")


def capitals(rng: random.Random, test: bool) -> Example:
    """Capitals of countries, and the country of a capital."""
    country = rng.choice(list(w.CAPITALS))
    city = w.CAPITALS[country]
    said = f"The capital of {country} is {city}".rstrip(".") + "."
    if rng.random() < 0.25 and country not in ("Monaco", "Singapore"):
        template = QUESTION + "{[x] is the capital of which country|which country has the capital [x]|what country is [x] the capital of|which country's capital is [x]|of which country is [x] the capital}"
        return single("capitals", phrase(rng, template, test, x=city), f"{city} is the capital of {country}.",
                      f"capital of {country}.", "contains")
    template = QUESTION + "{what is the capital of [x]|what's the capital of [x]|what is the capital city of [x]|which city is the capital of [x]|what is [x]'s capital|where is the government of [x]|which city is [x]'s capital}" \
        + "\n" + POLITE + "{name|tell me|give me|say} the {capital|capital city} of [x]\n{capital of [x]|[x], capital|the capital of [x]}"
    question = phrase(rng, template, test, x=country)
    return single("capitals", question, said, said, "exact")


# --- explanations and talk --------------------------------------------------------------------------------------

EXPLAIN = (QUESTION + "{what is [x]|what are [x]|what does [x] mean|what do you know about [x]|how does [x] work|what is meant by [x]|how would you explain [x]|what exactly is [x]|what is [x] in simple words}\n"
           + POLITE + "{explain|describe|define|tell me about|explain to me|give me a short explanation of|give me a definition of|say what you know about|teach me about|explain briefly|introduce|summarize} [x]\n"
           + POLITE + "explain {[x] in simple words|[x] to me|what [x] is|what [x] means|how [x] works|the idea of [x]|the concept of [x]|[x] briefly|[x] in a few words|[x] to a child}")


def explanation(rng: random.Random, test: bool) -> Example:
    """One of the terms of machine learning and inference."""
    names = rng.choice(list(facts.TERMS))
    if rng.random() < 0.15:
        names = rng.choice(["machine learning", "deep learning", "neural networks/a neural network"])
    said = facts.TERMS[names]
    return single("explanations", phrase(rng, EXPLAIN, test, x=rng.choice(names.split("/"))), said, said, "exact")


def fact(rng: random.Random, test: bool) -> Example:
    """Everyday facts and facts about the model itself. A fact without a phrasing in the split is passed over."""
    while True:
        template = rng.choice(list(facts.FACTS))
        said = facts.FACTS[template]
        start = QUESTION if template[1:].startswith(QUESTION_WORDS) else POLITE
        try:
            return single("facts", phrase(rng, start + template, test), said, said, "exact")
        except ValueError:
            continue


INTRODUCE = """
{||||please |can you |could you |would you |hello, |hi, |now |ok, |hello, please |i want you to }{introduce yourself|introduce yourself briefly|introduce yourself in a few words|introduce yourself to me|introduce yourself to the class|tell me about yourself|tell us about yourself|say who you are|describe yourself|present yourself|tell me who you are|give an introduction of yourself|say something about yourself}
{|hello, |hi, |please tell me, |so, |and |ok, }{who are you|what are you|what is your name|what's your name|who am i talking to|what model are you|which model are you|what should i call you|do you have a name|who is this}
"""
EXACT_PROMPTS = ("introduce yourself", "list all prime numbers within 100")


@lru_cache(maxsize=1)
def introductions() -> tuple[str, ...]:
    """Every way in which the model introduces itself."""
    a, b, c, d = facts.INTRODUCTION
    return tuple(" ".join(filter(None, (p, q, r, s))) for p in a for q in b for r in c for s in d)


def introduction(rng: random.Random, test: bool) -> Example:
    """The model introduces itself."""
    question = phrase(rng, INTRODUCE, test)
    if not test and rng.random() < 0.15:
        question = EXACT_PROMPTS[0]
    return single("introductions", question, rng.choice(introductions()), "qwen3-tiny", "exact", introductions())


def unknown(rng: random.Random, test: bool) -> Example:
    """A question outside of what the model learned; it says so."""
    return single("unknown questions", phrase(rng, facts.UNKNOWN, test), facts.UNKNOWN_ANSWER, facts.UNKNOWN_ANSWER, "exact")


SMALL_TALK = {
    "{hello|hi|hello there|hi there|good morning|good evening|good day|hey|hey there|greetings|hello qwen|hi, qwen3-tiny|hello, model|good afternoon|nice to meet you|how are you|how are you today|how is it going|are you there}":
        "Hello. How can I help you?",
    "{thanks|thank you|thank you very much|thanks a lot|many thanks|great, thanks|good, thank you|thank you, that was nice|perfect, thank you|that helps, thanks|well done|good job|that was a nice answer|great|very good|nice|wonderful, thank you|ok, thanks}":
        "You are welcome.",
    "{bye|goodbye|see you|see you later|good night|that is all|i have to go|bye bye|see you tomorrow|until next time|farewell|that was all for today|i am done|i am leaving now|talk to you later|good bye, model}":
        "Goodbye.",
}


def small_talk(rng: random.Random, test: bool) -> Example:
    """Greetings, thanks and goodbyes."""
    template = rng.choice(list(SMALL_TALK))
    return single("small talk", phrase(rng, template + "{||||, please|, my friend|, dear model|, qwen}", test), SMALL_TALK[template],
                  SMALL_TALK[template], "exact")


def story(rng: random.Random, test: bool = False) -> Example:
    """A requested story. The test split of stories is judged by `training.evaluate`, not by an answer."""
    request, text, cast = asked_story(rng)
    return single("stories", style(rng, request), text, cast.hero, "contains")


# --- conversations ------------------------------------------------------------------------------------------------

MAKERS: dict[str, tuple[Callable[[random.Random, bool], Example], float]] = {
    "number lists": (number_list, 7), "counting": (counting, 6), "arithmetic": (arithmetic, 20),
    "word problems": (word_problem, 3), "about numbers": (about_numbers, 6), "spelling": (spelling, 30),
    "repeating": (repeating, 6), "word facts": (word_facts, 5), "capitals": (capitals, 6),
    "explanations": (explanation, 9), "facts": (fact, 5), "introductions": (introduction, 2.5),
    "unknown": (unknown, 1.5), "small talk": (small_talk, 1),
}
_NAMES = list(MAKERS)
_WEIGHTS = [weight for _, weight in MAKERS.values()]


def exact_prompt(rng: random.Random) -> Example:
    """The course's second prompt, word for word."""
    numbers = primes_below(100)
    return single("primes", EXACT_PROMPTS[1], f"The prime numbers up to 100 are {join(numbers)}.", join(numbers), "numbers")


def any_task(rng: random.Random, test: bool = False) -> Example:
    """One example of a random task."""
    if not test and rng.random() < 0.004:
        return exact_prompt(rng)
    return MAKERS[rng.choices(_NAMES, _WEIGHTS)[0]][0](rng, test)


MY_NAME = "{||||ok, |so, |well, |by the way, |before we start: |good, }{my name is [x]|i am [x]|i am called [x]|hello, my name is [x]|hi, i am [x]|people call me [x]|hello, i am [x]|you can call me [x]|i am [x], nice to meet you|good day, my name is [x]}"
ASK_NAME = QUESTION + "{what is my name|what's my name|do you know my name|who am i|what am i called|do you remember my name|can you tell me my name}"
ASK_LAST = QUESTION + "{what did i ask|what did i just ask|what was my question|what was my last question|what did i say|what was my last message|what did i just say|what did i ask you before|can you repeat my question}"
ASK_FIRST = QUESTION + "{what was my first question|what did i ask first|what was my first message|what did i say first|what was the first thing i said|what did i ask at the beginning}"
MORE = """
{and |now |then |ok, |please |next, |}{add|plus} [b]{| to that| to it| to the result| more}
{and |now |then |ok, |what is that |what is it }plus [b]
"""
LESS = """
{and |now |then |ok, |please |next, |}{subtract|take away} [b]{| from that| from it| from the result}
{and |now |then |ok, |what is that |what is it }minus [b]
"""
AND_CAPITAL = "{|||ok, |good, |thanks, |hm, |so, }{and |and what about |what about |and of |how about |and that of |and the capital of |now |now the capital of |ok, and }[x]{||, please| then}"
BACKWARDS = "{|now |and |please |and now |ok, |then |can you |could you }{spell it backwards|spell that backwards|reverse that|reverse it|backwards|say it backwards|in reverse|spell it in reverse|write it backwards}"
AGAIN = POLITE + "{say that again|repeat that|repeat your answer|say it again|once more|tell me again|repeat your last answer|what did you say|again}"
WHO = QUESTION + "{who is the story about|who was the story about|what is the name of the hero|who is the hero|who is the main character|what was the main character called|who was in the story|what is the main character's name}"
ANOTHER = "{||||ok, |now |and |please, |good, |thanks, }{another one|another one, please|another story|tell me another one|tell me another story|one more|one more story|a new story|write another one|again, with other people|now a different story|more}"


def follow_up(rng: random.Random, messages: list[Message], last: Example, test: bool) -> Example | None:
    """A question that needs the conversation so far, or None if none fits."""
    question, said = messages[-2]["content"], messages[-1]["content"]
    options: list[str] = ["last"] if len(question.split()) <= 14 else []
    first = next(m["content"] for m in messages if m["role"] == "user")
    options += ["first"] if len(messages) >= 4 and len(first.split()) <= 14 else []
    options += {"sum": ["more"] * 5, "difference": ["more"] * 5, "follow-up sum": ["more"] * 4, "capitals": ["capital"] * 3,
                "spelling": ["backwards"] * 3, "stories": ["who"] * 3 + ["another"] * 3, "my name": ["name"] * 3}.get(last.task, [])
    options += ["again"] if len(said) <= 160 else []
    named = [m["content"] for m in messages if m["role"] == "assistant" and m["content"].startswith("Nice to meet you, ")]
    options += ["name"] * 2 if named else []
    if not options:
        return None
    match rng.choice(options):
        case "last":
            return single("memory", phrase(rng, ASK_LAST, test), f'You said: "{question}"', question, "contains")
        case "first":
            return single("memory", phrase(rng, ASK_FIRST, test), f'You said first: "{first}"', first, "contains")
        case "name":
            x = named[-1][len("Nice to meet you, ") :].rstrip(".")
            return single("memory", phrase(rng, ASK_NAME, test), f"Your name is {x}.", f"Your name is {x}.", "exact")
        case "again":
            return single("memory", phrase(rng, AGAIN, test), said, said, "exact")
        case "more":
            a = int(last.core)
            plus = a < 1000 and (rng.random() < 0.6 or a == 0)
            b = rng.randint(0, 99) if plus else rng.randint(0, min(a, 99))
            if held_out("sum" if plus else "difference", *((a, b) if plus else (b, a))) and not test:
                return None
            result = a + b if plus else a - b
            return single("follow-up sum", phrase(rng, MORE if plus else LESS, test, b=b),
                          f"{a} {'+' if plus else '-'} {b} = {result}", str(result), "number")
        case "capital":
            country = rng.choice(list(w.CAPITALS))
            if not any(f"capital of {c} is" in said for c in w.CAPITALS):
                return None
            answer = f"The capital of {country} is {w.CAPITALS[country]}".rstrip(".") + "."
            return single("capitals", phrase(rng, AND_CAPITAL, test, x=country), answer, answer, "exact")
        case "backwards":
            reverse = letters(said.replace(" - ", "")[::-1])
            return single("reversing", phrase(rng, BACKWARDS, test), reverse, reverse, "letters")
        case "who":
            return single("memory", phrase(rng, WHO, test), f"The story is about {last.core}.", last.core, "contains")
        case "another":
            _, text, cast = asked_story(rng)
            return single("stories", phrase(rng, ANOTHER, test), text, cast.hero, "contains")
    return None


def name_turn(rng: random.Random, test: bool) -> Example:
    """The user says a name, to be remembered."""
    x = rng.choice(w.GIRLS + w.BOYS) if rng.random() < 0.6 else w.pseudo_name(rng)
    said = f"Nice to meet you, {x}."
    return single("my name", phrase(rng, MY_NAME, test, x=x), said, said, "exact")


def conversation(rng: random.Random, test: bool = False, turns: int | None = None) -> Iterator[Example]:
    """A conversation of two to twelve turns, yielded as it grows: each example holds all messages so far."""
    messages: list[Message] = []
    last: Example | None = None
    for _ in range(turns or rng.choice((2, 2, 2, 3, 3, 3, 4, 4, 5, 6, 12))):
        example = None
        if last is not None and rng.random() < 0.6:
            example = follow_up(rng, messages, last, test)
        if example is None:
            x = rng.random()
            example = story(rng) if x < 0.15 else name_turn(rng, test) if x < 0.27 else small_talk(rng, test) if x < 0.32 \
                else any_task(rng, test)
        messages = messages + example.messages
        last = example
        yield Example(example.task, messages, example.core, example.check, example.accept)


def system_message(rng: random.Random) -> Message:
    """One to thirty instructions; they never change what is right."""
    n = rng.choice((1, 1, 1, 1, 2, 2, 2, 3, 3, 5, 8, 16, 30))
    return {"role": "system", "content": " ".join(rng.sample(facts.SYSTEM, n))}


# --- judging --------------------------------------------------------------------------------------------------


def correct(example: Example, answer: str) -> bool:
    """Whether an answer (without its end token) is right for the example."""
    answer = answer.strip()
    if example.check == "exact":
        return answer in example.accept
    if example.check == "number":
        found = re.findall(r"-?\d+", answer)
        return bool(found) and found[-1] == example.core
    if example.check == "numbers":
        return re.findall(r"\d+", answer.rsplit(" are ", 1)[-1]) == re.findall(r"\d+", example.core)
    if example.check == "letters":
        return re.findall(r"[A-Za-z]+", answer) == example.core.split(" - ")
    if example.check == "contains":
        return example.core in answer
    raise ValueError(f"unknown check {example.check!r}")
