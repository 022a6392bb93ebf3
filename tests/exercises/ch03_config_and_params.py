"""Grader of chapter 03. What is right is said by tables of values, by packing memory, and by a doorkeeper."""

import math
import numbers
import pickle
import random
from fractions import Fraction

import numpy as np

from exercises.kit import budget_work
from exercises.kit.grading import Check, Engine, case


class Said(str):
    """Text that a finding shows without quotes."""

    def __repr__(self):
        return str(self)


def attempt(check, function, *args, **kwargs):
    """What a call comes to: its value with its type, or the kind of error and its message.

    Other errors than these are none of an answer's doing; they show where they were raised.
    """
    try:
        value = function(*args, **kwargs)
    except (TypeError, ValueError, ArithmeticError, AssertionError) as error:
        kinds = [kind for kind in (TypeError, ValueError) if isinstance(error, kind)] or [type(error)]
        check.step(f"    raises {type(error).__name__}: {shown(str(error))[1:-1]}")
        return Said(kinds[0].__name__), str(error)
    return described(value), ""


def described(value):
    """A value with its type; a number of NumPy that is a float of Python, too, is one."""
    value = float(value) if isinstance(value, float) else value
    return Said(f"{shown(value)}, of type {type(value).__name__}")


def shown(value):
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:12]}... ({len(text)} characters)"


def is_error(got):
    return got.endswith("Error")


def check_calls(check: Check, function, calls, expected, says):
    """`calls` are pairs of arguments and keyword arguments; `expected` is a kind of error, or gives what comes back.

    `says(value, got, wanted, **kwargs)` is what a wrong outcome means.
    """
    for args, kwargs in calls:
        text = ", ".join([*map(shown, args), *(f"{name}={shown(value)}" for name, value in kwargs.items())])
        check.step(f"{function.__name__}({text})")
        result = attempt(check, function, *args, **kwargs)[0]
        wanted = expected(args[1]) if callable(expected) else Said(expected)
        means = lambda got, value=args[1], wanted=wanted, kwargs=kwargs: says(value, got, wanted, **kwargs)  # noqa: E731
        check.equal(f"what {function.__name__}({text}) comes to", result, wanted, says=means)


# check_float


def check_float_of(engine: Engine):
    return engine.get("validation:check_float")


def floats(values, **range_):
    return [(("temperature", value), range_) for value in values]


def as_float(value):
    return described(float(value))


def wrong_float(value, got, wanted, minimum=0.0, maximum=math.inf):
    """What a wrong outcome of check_float means."""
    it = shown(value)
    if got == "None, of type NoneType":
        if is_error(wanted):
            return f"{it} is neither refused nor returned: None came back. A value that is refused raises an error."
        return "None came back: what the function finds has to be returned."
    if got == "AssertionError":
        return (
            "An assertion failed. Assertions are for one's own mistakes, and python -O leaves them "
            "out; a caller is told with TypeError or ValueError."
        )
    if got == "OverflowError":
        return (
            f"{it} is larger than any float, and float() raises OverflowError for it. To the caller "
            "it is a value out of range like any other: ValueError."
        )
    if is_error(wanted) and is_error(got):
        if wanted == "TypeError":
            return (
                f"{it} is refused, but with {got}: that is for numbers with a bad value. This is "
                "no number at all, so TypeError."
            )
        return f"{it} is refused, but with {got}: it is a number, only one that is not accepted, so ValueError."
    if is_error(wanted):
        if isinstance(value, numbers.Real) and 0 == maximum < value and same_number(number_in(got), value):
            return f"{it} passes, though the range is from {minimum} to {maximum}. 0 is a limit like any other."
        return passed_float(value, got)
    if is_error(got):
        return refused_float(value, got)
    number, _, kind = got.rpartition(", of type ")
    if same_number(number, value):
        return (
            f"The number is right, but what comes back is of type {kind}. A float of Python is promised, "
            "whatever came in."
        )
    return (
        f"{it} is accepted, and another number than {float(value)} comes back. A value that is accepted "
        "is not changed, only made a float."
    )


def passed_float(value, got):
    """It was accepted, and should have been refused."""
    it = shown(value)
    if type(value) is int and abs(value) > 10**308:
        return f"{it} is larger than any float. It is refused like any number that is out of range, and not replaced."
    if isinstance(value, bool | np.bool_):
        return (
            f"{it} passes. To Python it is a number, and an int even; but temperature=True is a mistake "
            "of whoever wrote it."
        )
    if isinstance(value, str | bytes):
        return (
            f"The text {it} passes: float() reads numbers out of texts. Whether it is a number has "
            "to be asked before it is converted."
        )
    if isinstance(value, numbers.Real) and math.isnan(value):
        return (
            "NaN passes, or becomes another number. Every comparison with NaN is false, so neither "
            '"too small" nor "too large" ever finds it.'
        )
    if isinstance(value, float) and math.isinf(value):
        return (
            f"{it} passes, or becomes another number. Where a range has no upper end, infinity is "
            "in it; it needs a question of its own."
        )
    if isinstance(value, numbers.Real):
        if same_number(number_in(got), value):
            return f"{it} is outside of the range, and passes. Both minimum and maximum have to be looked at."
        return (
            f"{it} is outside of the range, and another number comes back. A value that cannot be "
            "right is refused, not moved."
        )
    return f"{it} is no number, and is not refused."


def number_in(got):
    """The value in the description of one."""
    return got.rpartition(", of type ")[0]


def same_number(text, value):
    """Whether a value that came back, as it was described, is the one that was given."""
    try:
        return text in (repr(value), shown(value)) or float(text) == float(value)
    except (ValueError, OverflowError):
        return False


def refused_float(value, got):
    """It was refused, and should have been accepted."""
    it = shown(value)
    if type(value) is int and abs(value) > 2**60:
        return (
            f"{it} is refused. It is a large integer, but floats reach up to 1.8e308, and no smaller limit holds here: "
            "neither integers of Python nor floats end at 2**63."
        )
    if type(value) is int:
        end = "" if got == "TypeError" else " Does it stand on an end of the range? Both ends belong to it."
        return f"{it} is refused. An integer is a number, too: temperature=0 is what people write.{end}"
    if type(value) is not float:
        return (
            f"{it} is refused, a {type(value).__name__}. It is a number as good as any; numbers.Real "
            "is what all real numbers have in common."
        )
    return (
        f"{it} is refused, though it is a float in the range. Both ends belong to the range, and "
        "the function gets minimum and maximum from its caller."
    )


@case("ch03.check_float")
def finite_numbers(engine, check):
    """Numbers in the range come back as floats; integers are numbers, too."""
    function = check_float_of(engine)
    check_calls(check, function, floats([0.5, 1e-9, 1e308, 0.7, 2, 10**15]), as_float, wrong_float)
    check_calls(check, function, floats([0.25, -0.5], minimum=-1.0, maximum=1.0), as_float, wrong_float)
    check_calls(check, function, floats([-3, -2.5], minimum=-5, maximum=-1), as_float, wrong_float)


@case("ch03.check_float")
def the_ends_of_the_range(engine, check):
    """Both ends belong to the range, and what is beyond them does not."""
    function = check_float_of(engine)
    check_calls(check, function, floats([0.0, 0]), as_float, wrong_float)
    check_calls(check, function, floats([0.0, 1.0, 1], maximum=1.0), as_float, wrong_float)
    check_calls(check, function, floats([2.0, 3.0], minimum=2.0, maximum=3.0), as_float, wrong_float)
    check_calls(check, function, floats([-1e-9, -3, -1e308]), "ValueError", wrong_float)
    check_calls(check, function, floats([1.0000001, 2, 1e308], maximum=1.0), "ValueError", wrong_float)
    check_calls(check, function, floats([1.9, 3.1], minimum=2.0, maximum=3.0), "ValueError", wrong_float)


@case("ch03.check_float")
def a_limit_of_zero(engine, check):
    """The largest number that is accepted is 0; or the smallest; or it is the only one."""
    function = check_float_of(engine)
    for range_ in ({"minimum": -2.0, "maximum": 0.0}, {"minimum": -2, "maximum": 0}):
        check_calls(check, function, floats([-2.0, -0.5, 0.0, 0], **range_), as_float, wrong_float)
        check_calls(check, function, floats([0.5, 1e-9, 3, -2.5], **range_), "ValueError", wrong_float)
    check_calls(check, function, floats([0, 0.0], minimum=0, maximum=0), as_float, wrong_float)
    check_calls(check, function, floats([1, -1, 1e-300, -1e-300], minimum=0, maximum=0), "ValueError", wrong_float)


@case("ch03.check_float")
def limits_without_an_end(engine, check):
    """Any finite number is accepted; or any that is not above 5."""
    function = check_float_of(engine)
    check_calls(check, function, floats([-1e308, 1e308, -7, 0], minimum=-math.inf), as_float, wrong_float)
    check_calls(check, function, floats([-1e308, 5], minimum=-math.inf, maximum=5), as_float, wrong_float)
    others = floats([math.inf, -math.inf, math.nan], minimum=-math.inf)
    check_calls(check, function, [*others, *floats([5.5, -math.inf], minimum=-math.inf, maximum=5)],
                "ValueError", wrong_float)  # fmt: skip


@case("ch03.check_float")
def large_integers(engine, check):
    """Integers that are larger than those of 64 bits, and smaller than the largest float."""
    function = check_float_of(engine)
    check_calls(check, function, floats([2**53, 2**63, 2**64, 10**30, 10**300]), as_float, wrong_float)
    check_calls(check, function, floats([-(2**63) - 1, -(10**300)], minimum=-1e308), as_float, wrong_float)
    check_calls(check, function, floats([2**63, 10**300], maximum=1.0), "ValueError", wrong_float)


@case("ch03.check_float")
def not_a_number_and_infinity(engine, check):
    """A computation went wrong somewhere, and its result arrives as a temperature. It is a float, and no number."""
    function = check_float_of(engine)
    for range_, words in (({}, "from 0"), ({"maximum": 1.0}, "from 0 to 1")):
        others, errors = [], set()
        for value in (math.nan, math.inf, -math.inf):
            check.step(f"check_float('temperature', {value}{', maximum=1.0' if range_ else ''})")
            result = attempt(check, function, "temperature", value, **range_)[0]
            if result != "ValueError":
                others.append(f"{value} comes to {result}")
                errors.add(wrong_float(value, result, Said("ValueError")))
        got = Said("; ".join(others) or "none of them")
        means = " ".join(sorted(errors))
        what = f"which of nan, inf and -inf come to anything but ValueError, {words}"
        check.equal(what, got, Said("none of them"), says=means)


@case("ch03.check_float")
def integers_beyond_any_float(engine, check):
    """An integer of Python may have any number of digits; no float is as large."""
    check_calls(check, check_float_of(engine), floats([10**400, -(10**400)]), "ValueError", wrong_float)
    check_calls(check, check_float_of(engine), floats([10**400], maximum=1.0), "ValueError", wrong_float)


@case("ch03.check_float")
def numbers_of_other_libraries(engine, check):
    """A float of NumPy in half the precision, an integer of NumPy, and a fraction."""
    function = check_float_of(engine)
    check_calls(check, function, floats([np.float32(0.5), np.int64(2), Fraction(1, 4)]), as_float, wrong_float)
    check_calls(check, function, floats([np.float32("nan"), np.float32("inf")]), "ValueError", wrong_float)


@case("ch03.check_float")
def true_is_no_number(engine, check):
    """Somebody wrote temperature=True, or passed on what a comparison in NumPy gave."""
    check_calls(check, check_float_of(engine), floats([True, False, np.bool_(True)]), "TypeError", wrong_float)


@case("ch03.check_float")
def what_is_no_number(engine, check):
    """Texts, also those that look like a number, and other things."""
    check_calls(
        check, check_float_of(engine), floats(["0.5", "hot", "", b"0.5", None, [0.5], 1j]), "TypeError", wrong_float
    )


@case("ch03.check_float")
def the_same_value_again(engine, check):
    """One value for several arguments, each with its own range: what was found before says nothing."""
    function = check_float_of(engine)
    for _ in range(2):
        check_calls(check, function, floats([2.0], maximum=2.0), as_float, wrong_float)
        check_calls(check, function, floats([2.0], maximum=1.0), "ValueError", wrong_float)
        check_calls(check, function, floats([2.0]), as_float, wrong_float)


@case("ch03.check_float")
def what_these_messages_say(engine, check):
    """Whoever reads the error has to find the argument and the value in it."""
    function = check_float_of(engine)
    for value in (-7.25, 8.5, 1.2345678, -0.001, math.nan, math.inf, "warm", 10**400, True, 2 + 5j):
        name = "patience" if isinstance(value, float) and value != 8.5 else "top_p"
        check.step(f"check_float({name!r}, {shown(value)}, maximum=1.0)")
        message = attempt(check, function, name, value, maximum=1.0)[1]
        nothing = "" if message else " This one has no message."
        quotes = (
            (" A text stands there with its quotes, as repr writes it: {value!r} in an f-string.")
            if value == "warm"
            else ""
        )
        if isinstance(value, float) and any(f"{value:{kind}}" in message for kind in (".1f", ".2f", "g", ".2e")):
            quotes = " It stands there rounded, or in another format; it is to be read as it was given."
        own = (
            "The message does not name the argument. If it is not one of your own, Python has raised "
            f"it at a step that cannot take {shown(value)}.{nothing}"
        )
        check.true(f"the message names the argument, {name}", name in message, says=own)
        says = f"The message does not show what was given, {shown(value)}.{quotes}{nothing}"
        check.true(f"the message shows the value, {shown(value)}", repr(value) in message, says=says)


# num_blocks_that_fit


def packed(total, in_use, activations, utilization, block_bytes):
    """Blocks are put in, one after the other, as long as everything together stays under the limit."""
    limit, filled, count = math.floor(Fraction(utilization) * total), in_use + activations, 0
    while filled + block_bytes <= limit:
        filled, count = filled + block_bytes, count + 1
    return count


# What would come out, and of which mistake.
FORMULAS = {
    "the bytes in use were not taken off": lambda t, i, a, u, b: (t * u - a) / b,
    "the activations were not taken off": lambda t, i, a, u, b: (t * u - i) / b,
    "nothing were taken off": lambda t, i, a, u, b: t * u / b,
    "the share were one of what is left, not of the whole memory": lambda t, i, a, u, b: (t - i - a) * u / b,
    "the share were one of what is not in use, not of the whole memory": lambda t, i, a, u, b: ((t - i) * u - a) / b,
    "the activations came out before the share is taken": lambda t, i, a, u, b: ((t - a) * u - i) / b,
    "the share were rounded down to whole percent": lambda t, i, a, u, b: (t * (int(u * 100) / 100) - i - a) / b,
    "the share were rounded to whole percent": lambda t, i, a, u, b: (t * (round(u * 100) / 100) - i - a) / b,
    "all of the memory might be filled": lambda t, i, a, u, b: (t - i - a) / b,
    "the activations were added": lambda t, i, a, u, b: (t * u - i + a) / b,
    "the bytes in use were added": lambda t, i, a, u, b: (t * u + i - a) / b,
}


def would_be(what, found):
    """Which mistakes make a number, if there are few: said as what it is, a number that they would make."""
    return f"{what} if {', or if '.join(found)}." if 1 <= len(found) <= 3 else None


def wrong_fit(arguments):
    """What a wrong number of blocks means: said only where a single mistake of these makes it."""
    right = packed(*arguments)

    def says(got):
        if got == "None, of type NoneType":
            return "None came back: the number has to be returned."
        if is_error(got):
            return f"It raises {got}. A number is promised for any memory; where nothing fits, it is 0."
        number, _, kind = got.rpartition(", of type ")
        try:
            value = float(number)
        except ValueError:
            return f"A {kind} came back; a number of blocks is promised."
        if value == right:
            return (
                f"The number is right, but it is of type {kind}: a list of {number} blocks cannot "
                "be made. An int is promised."
            )
        if not value.is_integer():
            return "Part of a block is counted. Blocks are whole, and what is left at the end stays free."
        if value < 0:
            return "A number below zero came back. Where nothing is left, no block fits: that is 0."
        if value == right + 1 and right == math.floor(exact(arguments)) and right > 0 and arguments[-1] > 1:
            return "One block too many: what is left at the end is too small for it. Blocks are whole, so round down."
        found = [text for text, formula in FORMULAS.items() if max(0, math.floor(formula(*arguments))) == value]
        if right == 0 and not found:
            return "Nothing fits here: what may be filled is taken already."
        taken = arguments[1] + arguments[2] + int(value) * arguments[4]
        limit = f"{arguments[3]:g} of {arguments[0]:,} bytes may be filled"
        simple = f"{limit}; with {number} blocks, and all that is in use or needed by a step, {taken:,} are."
        return would_be("That many would fit", found) or simple

    return says


def exact(arguments):
    total, in_use, activations, utilization, block_bytes = arguments
    return (Fraction(utilization) * total - in_use - activations) / block_bytes


def check_fit(engine: Engine, check: Check, *arguments):
    names = ("total", "in_use", "activations", "utilization", "block_bytes")
    text = ", ".join(f"{name}={value}" for name, value in zip(names, arguments, strict=True))
    errors = {"MemoryError": "An error was raised. Where nothing fits, the answer is 0; whoever asked says what to do."}
    check.step(f"num_blocks_that_fit({text})", says=errors)
    got = attempt(check, engine.get("utils.memory:num_blocks_that_fit"), *arguments)[0]
    check.equal(f"the blocks for {text}", got, described(packed(*arguments)), says=wrong_fit(arguments))


@case("ch03.num_blocks_that_fit")
def an_empty_device(engine, check):
    """Nothing is in use, and all of the memory may be filled."""
    for total, block_bytes in [(1000, 100), (1000, 1000), (1 << 20, 4096)]:
        check_fit(engine, check, total, 0, 0, 1.0, block_bytes)


@case("ch03.num_blocks_that_fit")
def blocks_are_whole(engine, check):
    """The last bit of memory is too small for one more block."""
    for total in (1099, 1001, 1060, 999, 100, 101):
        check_fit(engine, check, total, 0, 0, 1.0, 100)


@case("ch03.num_blocks_that_fit")
def weights_are_there_first(engine, check):
    """The weights, and perhaps another program, are in the memory before the cache comes."""
    for in_use in (100, 400, 875):
        check_fit(engine, check, 1000, in_use, 0, 1.0, 25)


@case("ch03.num_blocks_that_fit")
def a_step_needs_room(engine, check):
    """The activations are gone when the question is asked, and come back with every large step."""
    for activations in (100, 400, 875):
        check_fit(engine, check, 1000, 0, activations, 1.0, 25)


@case("ch03.num_blocks_that_fit")
def a_share_of_the_whole(engine, check):
    """Three quarters of the memory may be filled, by everything together: not three quarters of what is free."""
    for in_use, activations in [(0, 0), (400, 0), (0, 200), (400, 200), (700, 0)]:
        check_fit(engine, check, 1000, in_use, activations, 0.75, 10)


@case("ch03.num_blocks_that_fit")
def to_the_byte(engine, check):
    """Blocks of one byte: what may be filled is filled, and not a byte more."""
    for total, utilization in [(1000, 0.9), (1000, 0.75), (4096, 0.5)]:
        check_fit(engine, check, total, 0, 0, utilization, 1)


@case("ch03.num_blocks_that_fit")
def any_share(engine, check):
    """Shares that are no whole percent, and very small ones."""
    for utilization in (0.905, 0.295, 0.9995, 0.0625, 0.004):
        check_fit(engine, check, 10_003, 0, 0, utilization, 7)
        check_fit(engine, check, 10_003, 17, 7, utilization, 7)


@case("ch03.num_blocks_that_fit")
def nearly_full(engine, check):
    """Large devices on which only some bytes are left: numbers that floats of 32 bits, or whole MB, cannot tell."""
    for total in (24 * 2**30 - 1, 80 * 10**9 + 7):
        for left in (99, 15, 14, 13, 7, 6, 0):
            check_fit(engine, check, total, total - 5_000_000 - left, 5_000_000, 1.0, 7)


@case("ch03.num_blocks_that_fit")
def nothing_fits(engine, check):
    """Too little is left, or the limit is passed already before the first block."""
    for arguments in [(1000, 950, 0, 1.0, 100), (1000, 600, 0, 0.5, 10), (1000, 500, 300, 0.75, 10), (80, 0, 0, 1, 81)]:
        check_fit(engine, check, *arguments)


@case("ch03.num_blocks_that_fit")
def as_packing_by_hand(engine, check):
    """Devices of 8, 24 and 80 GB with weights, steps and blocks of many sizes; the answer is packed block by block."""
    rng = random.Random(3)
    for total in (8 * 10**9, 24 * 2**30 - 70_123_457, 80 * 10**9):
        for utilization in (0.5, 0.75, 0.9, 0.9537):
            in_use, activations = rng.randrange(total // 2), rng.randrange(total // 8)
            check_fit(engine, check, total, in_use, activations, utilization, rng.randrange(10**7, 10**8))


# what_would_help

KNOBS = ("gpu_memory_utilization", "max_num_batched_tokens", "kvcache_block_size")
KNOB_WORDS = {
    KNOBS[0]: "If all of the memory may be filled (utilization 1), and all else is as it is, a block {}.",
    KNOBS[1]: "If a step takes nothing (activations 0), and all else is as it is, a block {}.",
    KNOBS[2]: "A block of one token takes {bytes} bytes; if all else is as it is, it {}.",
}


def helping(total, in_use, activations, utilization, block_bytes, block_size):
    """Each option tried out, by packing."""
    if packed(total, in_use, activations, utilization, block_bytes):
        return []
    fits = [
        packed(total, in_use, activations, 1.0, block_bytes),
        packed(total, in_use, 0, utilization, block_bytes),
        packed(total, in_use, activations, utilization, Fraction(block_bytes, block_size)),
    ]
    return [name for name, count in zip(KNOBS, fits, strict=True) if count]


def wrong_help(arguments):
    right = helping(*arguments)

    def says(got):
        if got is None:
            return "None came back. Also where there is nothing to say, a list is promised: an empty one."
        if not isinstance(got, list):
            return f"A {type(got).__name__} came back; a list is promised."
        unknown = [name for name in got if name not in KNOBS]
        if unknown:
            return f"{unknown[0]!r} is none of the three names."
        if packed(*arguments[:5]):
            return "A block fits as it is: nothing has to be changed, so there is nothing to name."
        for name in KNOBS:
            bytes_ = f"{arguments[4] / arguments[5]:g}"
            if name in right and name not in got:
                return f"{name} is missing. {KNOB_WORDS[name].format('fits', bytes=bytes_)}"
            if name in got and name not in right:
                return f"{name} does not help here. {KNOB_WORDS[name].format('does not fit', bytes=bytes_)}"
        return "The names are right; they stand in another order, or one of them twice."

    return says


def check_help(engine: Engine, check: Check, *arguments):
    names = ("total", "in_use", "activations", "utilization", "block_bytes", "block_size")
    text = ", ".join(f"{name}={value}" for name, value in zip(names, arguments, strict=True))
    check.step(f"what_would_help({text})")
    got = engine.get("labs:what_would_help")(*arguments)
    check.equal(f"what helps for {text}", got, helping(*arguments), says=wrong_help(arguments))


@case("ch03.what_would_help")
def it_starts(engine, check):
    """There is room for a block, or for many: nothing has to be changed."""
    for arguments in [(1000, 100, 100, 0.9, 50, 10), (1000, 0, 0, 1.0, 1000, 10), (1000, 500, 300, 0.9, 100, 4)]:
        check_help(engine, check, *arguments)


@case("ch03.what_would_help")
def only_the_limit(engine, check):
    """The weights stand just under the limit of one half. There is a lot of memory beyond it."""
    check_help(engine, check, 1000, 499, 0, 0.5, 64, 16)
    check_help(engine, check, 1000, 510, 20, 0.5, 64, 16)


@case("ch03.what_would_help")
def only_the_step(engine, check):
    """All of the memory may be filled already, and the largest step takes nearly half of it."""
    check_help(engine, check, 1000, 520, 480, 1.0, 64, 16)
    check_help(engine, check, 1000, 520, 500, 1.0, 64, 16)


@case("ch03.what_would_help")
def only_the_block(engine, check):
    """Blocks are huge. What is left is enough for some tokens, but not for that many."""
    check_help(engine, check, 1000, 500, 0, 1.0, 800, 16)
    check_help(engine, check, 1000, 300, 100, 1.0, 6400, 64)


@case("ch03.what_would_help")
def to_the_byte_again(engine, check):
    """What an option gives is just enough, to the byte; or it is a single byte short."""
    for in_use in (936, 937):
        check_help(engine, check, 1000, in_use, 10, 1.0, 64, 16)  # 64 bytes, or 63, without activations
    for in_use in (436, 437):
        check_help(engine, check, 1000, in_use, 1, 0.5, 64, 16)  # the same under a limit of one half
    for in_use in (930, 931):
        check_help(engine, check, 1000, in_use, 6, 0.75, 64, 16)  # 64 bytes, or 63, if all may be filled
    for in_use in (996, 997):
        check_help(engine, check, 1000, in_use, 0, 1.0, 64, 16)  # a block of one token, or a byte less
    for in_use in (489, 490):
        check_help(engine, check, 1000, in_use, 6, 0.5, 80, 16)  # the same with activations under a limit
    check_help(engine, check, 1000, 936, 0, 0.9, 64, 1)  # blocks of one token cannot be smaller
    check_help(engine, check, 1000, 960, 0, 1.0, 2560, 256)  # a block of one token takes 10 of the 40 bytes
    check_help(engine, check, 1_000_000, 999_936, 400_000, 1.0, 64, 16)  # as many as a block takes, without a step


@case("ch03.what_would_help")
def two_engines(engine, check):
    """One engine is asked about, then another one. The first answer is still what it was."""
    function = engine.get("labs:what_would_help")
    first, other = (1000, 510, 20, 0.5, 64, 16), (1000, 1200, 0, 0.9, 64, 16)
    check.step(f"what_would_help{first}, then what_would_help{other}")
    found = function(*first)
    function(*other)
    says = "The list that came back first has changed since: each call is to make a list of its own."
    check.equal("the first answer", found, helping(*first), says=says if found != helping(*first) else None)
    check.equal("what comes when the first is asked again", function(*first), helping(*first), says=says)


@case("ch03.what_would_help")
def several_at_a_time(engine, check):
    """One option or more, each by itself; sometimes it only just helps."""
    check_help(engine, check, 1000, 920, 0, 0.9, 64, 16)  # only just: at 1, and not before
    check_help(engine, check, 1000, 990, 0, 1.0, 64, 16)  # ten bytes are left, and a token takes four
    for arguments in [(1000, 400, 180, 0.6, 64, 16), (1000, 600, 250, 0.8, 64, 16), (1000, 400, 150, 0.6, 64, 16)]:
        check_help(engine, check, *arguments)


@case("ch03.what_would_help")
def none_by_itself(engine, check):
    """The weights are larger than the memory, or leave too little of it, whatever is changed."""
    for arguments in [(1000, 1200, 0, 0.9, 64, 16), (1000, 998, 0, 0.9, 64, 16), (1000, 900, 100, 0.8, 640, 4)]:
        check_help(engine, check, *arguments)


@case("ch03.what_would_help")
def real_cards(engine, check):
    """Qwen3-8B with blocks of 256 tokens, and GPUs of 16, 24 and 40 GB."""
    for gigabytes, utilization in [(16, 0.9), (24, 0.7), (24, 0.78), (24, 0.8), (24, 0.9), (40, 0.45), (18, 0.95)]:
        check_help(engine, check, gigabytes * 10**9, 16_881_000_000, 2_147_000_000, utilization, 37_748_736, 256)


# how_many_fit


def let_in(lengths, num_blocks, block_size, max_num_seqs):
    """A doorkeeper: requests take empty blocks from a heap, and put their tokens into them one by one."""
    heap, inside = num_blocks, 0
    for length in lengths:
        if inside == max_num_seqs:
            break
        room = 0
        while room < length and heap:
            heap, room = heap - 1, room + block_size
        if room < length:
            break
        inside += 1
    return inside


def wrong_count(lengths, num_blocks, block_size, max_num_seqs):
    right = let_in(lengths, num_blocks, block_size, max_num_seqs)
    no_limit = let_in(lengths, num_blocks, block_size, len(lengths))
    # What would come out of which mistake.
    blocks = [-(-length // block_size) for length in lengths]
    overtaking, free = 0, num_blocks
    for count in blocks:
        if count <= free and overtaking < max_num_seqs:
            overtaking, free = overtaking + 1, free - count

    def among(sizes, room):
        """Requests whose sizes, one after the other, stay within the room."""
        taken = [sum(sizes[: i + 1]) <= room for i in range(len(sizes))]
        return min(max_num_seqs, sum(taken))

    found = {
        "the first that has no room were skipped, and a shorter one behind it let in": overtaking,
        "max_num_seqs did not count": no_limit,
        ("blocks could be shared: the tokens were added up, and only the sum was divided"): among(
            lengths, num_blocks * block_size
        ),
        "blocks were rounded down": among([length // block_size for length in lengths], num_blocks),
        ("every request took one block more than it needs at a full one"): among(
            [n // block_size + 1 for n in lengths], num_blocks
        ),
        "the last block had to stay free": among(blocks, num_blocks - 1),
        "every request took one block": min(max_num_seqs, num_blocks, len(lengths)),
        "every request took a block for each of its tokens": among(lengths, num_blocks),
        "the one that has no room were counted, too": min(right + 1, len(lengths)),
        "one more than max_num_seqs came in": min(max_num_seqs + 1, no_limit),
    }

    def says(got):
        if got is None:
            return "None came back: the number has to be returned."
        if isinstance(got, float) and got == right:
            return "The number is right, but it is a float. Requests are whole; an int is promised."
        if got == right:
            return f"The number is right, but it is of type {type(got).__name__}; an int is promised."
        means = would_be("That many would be in", [text for text, number in found.items() if number == got])
        if means or not isinstance(got, int):
            return means
        free = num_blocks - sum(blocks[:right])
        if right == min(len(lengths), max_num_seqs):
            return f"{right} come in: more do not ask, or may not run (max_num_seqs is {max_num_seqs})."
        return f"When {right} are in, {free} blocks are free, and the next one needs {blocks[right]}."

    return says


def check_count(engine: Engine, check: Check, lengths, num_blocks, block_size, max_num_seqs):
    text = f"lengths={shown(lengths)}, num_blocks={num_blocks}, block_size={block_size}, max_num_seqs={max_num_seqs}"
    check.step(f"how_many_fit({text})")
    given = list(lengths)
    got = engine.get("labs:how_many_fit")(given, num_blocks, block_size, max_num_seqs)
    right = let_in(lengths, num_blocks, block_size, max_num_seqs)
    says = wrong_count(lengths, num_blocks, block_size, max_num_seqs)
    if isinstance(got, numbers.Integral) and not isinstance(got, bool):
        got = int(got)
    check.equal(f"how many fit, for {text}", Typed(got), Typed(right), says=lambda typed: says(typed.value))
    check.equal(
        "the list of lengths afterwards",
        given,
        list(lengths),
        says=("The list belongs to the caller, and is another one now."),
    )


class Typed:
    """A value that is equal only to one of the same type."""

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return type(self.value) is type(other.value) and self.value == other.value

    __hash__ = None

    def __repr__(self):
        return repr(self.value)


@case("ch03.how_many_fit")
def equal_requests(engine, check):
    """Requests that fill their blocks to the last slot."""
    for num_blocks in (12, 13, 14, 15, 3, 2):
        check_count(engine, check, [48] * 10, num_blocks, 16, 100)


@case("ch03.how_many_fit")
def a_block_begun_is_taken(engine, check):
    """Requests of 17 tokens, or of 1, in blocks of 16. The empty slots are nobody else's."""
    for length, num_blocks in [(17, 6), (1, 5), (33, 12), (15, 4), (18, 7)]:
        check_count(engine, check, [length] * 20, num_blocks, 16, 100)


@case("ch03.how_many_fit")
def all_of_them(engine, check):
    """There are fewer requests than there is room for; or none."""
    for lengths in ([], [5], [5, 40, 16]):
        check_count(engine, check, lengths, 100, 16, 100)
    check_count(engine, check, [5, 40, 16], 5, 16, 3)


@case("ch03.how_many_fit")
def blocks_of_one_token(engine, check):
    """A block holds a single token: nothing is ever wasted."""
    for num_blocks in (9, 10, 11):
        check_count(engine, check, [3, 1, 4, 2, 1], num_blocks, 1, 100)


@case("ch03.how_many_fit")
def as_many_as_may_run(engine, check):
    """There is room for many, but max_num_seqs is small."""
    for max_num_seqs in (1, 4, 7):
        check_count(engine, check, [20] * 9, 100, 16, max_num_seqs)


@case("ch03.how_many_fit")
def nobody_overtakes(engine, check):
    """A long request has no room. Behind it stand short ones, which would fit."""
    check_count(engine, check, [32, 32, 160, 16, 16], 8, 16, 100)
    check_count(engine, check, [500, 1, 1, 1], 8, 16, 100)
    check_count(engine, check, [16, 16, 160, 16, 160, 16], 6, 16, 4)


@case("ch03.how_many_fit")
def as_a_doorkeeper(engine, check):
    """Requests of all lengths, and pools of all sizes; a doorkeeper lets them in one by one."""
    rng = random.Random(5)
    for _ in range(12):
        block_size = rng.choice([1, 4, 16, 256])
        lengths = [rng.randrange(1, 6 * block_size + 2) for _ in range(rng.randrange(3, 14))]
        check_count(engine, check, lengths, rng.randrange(1, 40), block_size, rng.randrange(2, 12))


# choose_options: an open exercise

ALLOWED = tuple(budget_work.DEFAULTS)


def chosen_options(engine: Engine, check: Check, workload, room):
    """What is chosen for a workload, if the engine takes it."""
    given = list(workload)
    check.step(f"choose_options for {len(workload)} requests, with {room / 1e9:.2f} GB")
    choose = engine.get("labs:choose_options")
    options = choose(given, room, budget_work.KV_BYTES, budget_work.STEP_BYTES)
    check.equal("the workload afterwards", given, list(workload), says="The list belongs to the caller.")
    is_dict = isinstance(options, dict)
    if not check.true("a dict came back", is_dict, says="A dict of options is promised, also an empty one."):
        return None
    unknown = sorted(set(map(str, options)) - set(ALLOWED))
    if not check.equal("names that are none of the three", unknown, [], says="Only the three options may be chosen."):
        return None
    whole = {name: int(value) for name, value in options.items() if isinstance(value, numbers.Integral)}
    what = "options that are no whole number from 1 on"
    if not check.equal(what, [name for name in options if whole.get(name, 0) < 1], [], says="The engine refuses them."):
        return None
    size = whole.get("kvcache_block_size", 256)
    check.step(f"it chooses {whole}")
    if not check.equal(
        "the rest when kvcache_block_size is divided by 16", size % 16, 0, says=("Blocks hold a multiple of 16.")
    ):
        return None
    return whole


def steps_of(options, workload, room):
    """Steps of a workload with some options, or why it cannot be."""
    try:
        return budget_work.simulate(options, workload, room).steps
    except MemoryError as error:
        return Said(f"it does not start: {error}")


@case("ch03.choose_options")
def a_thousand_steps(engine, check):
    """The three workloads, on a GPU that has 3.5 GB left for cache and activations together."""
    total, defaults = 0, 0
    for name, workload in budget_work.WORKLOADS.items():
        options = chosen_options(engine, check, workload, budget_work.ROOM)
        if options is None:
            return
        usual = budget_work.simulate({}, workload).steps
        steps = steps_of(options, workload, budget_work.ROOM)
        if isinstance(steps, Said):
            check.equal(f"the engine for {name}", steps, Said("starts"), says="The largest step takes too much room.")
            return
        check.step(f"{name}: {steps} steps, and {usual} with the defaults")
        check.true(f"{name}: not more steps than with the defaults", steps <= usual,
                   says=(
                       "These options cost more steps than they save with this workload. What does "
                       "it need: large steps, or much cache?"
                   ))  # fmt: skip
        total, defaults = total + steps, defaults + usual
    check.measured(f"all together: {total} steps, and {defaults} with the defaults")
    check.true("all together: at most 1,000 steps", total <= 1000,
               says=(
                   "Better than nothing, or not even that. Every byte that steps do not take is "
                   "cache; and small blocks waste less of it."
               ))  # fmt: skip


@case("ch03.choose_options")
def with_less_room(engine, check):
    """Less memory than the largest step of the defaults takes. The engine has to start all the same."""
    for room in (1_000_000_000, 400_000_000):
        for workload in budget_work.WORKLOADS.values():
            options = chosen_options(engine, check, workload, room)
            if options is None:
                return
            steps = steps_of(options, workload, room)
            says = "The room is an argument: what is chosen has to leave a cache for the longest request."
            if not check.true("the engine starts", not isinstance(steps, Said), says=says):
                return


@case("ch03.choose_options")
def with_other_work(engine, check):
    """Other requests: a single one, many short ones, some that are long on both sides."""
    rng = random.Random(11)
    both = [(rng.randrange(300, 900), rng.randrange(100, 400)) for _ in range(12)]
    for workload in ([(200, 50)], [(8, 4)] * 60, both):
        options = chosen_options(engine, check, workload, budget_work.ROOM)
        if options is None:
            return
        steps = steps_of(options, workload, budget_work.ROOM)
        check.true("the engine starts", not isinstance(steps, Said), says="It has no room for the longest request.")


@case("ch03.choose_options")
def it_can_be_asked_again(engine, check):
    """The same workload, asked a second time, and from a copy of the list."""
    workload = budget_work.WORKLOADS["documents"][:10]
    first = chosen_options(engine, check, workload, budget_work.ROOM)
    second = chosen_options(engine, check, pickle.loads(pickle.dumps(workload)), budget_work.ROOM)
    check.true("both times an answer", first is not None and second is not None)
