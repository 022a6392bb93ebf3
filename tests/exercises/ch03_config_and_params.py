"""Grader of chapter 03. What is right is said by tables of values, and by packing memory block by block."""

import math
import random
from fractions import Fraction

import numpy as np

from exercises.kit.grading import Check, Engine, case


class Said(str):
    """Text that a finding shows without quotes."""

    def __repr__(self):
        return str(self)


def attempt(check, function, *args, **kwargs):
    """What a call comes to: its value with its type, or the kind of refusal and its message."""
    try:
        value = function(*args, **kwargs)
    except (TypeError, ValueError) as error:
        kind = "TypeError" if isinstance(error, TypeError) else "ValueError"
        check.step(f"    raises {kind}: {shown(str(error))[1:-1]}")
        return Said(kind), str(error)
    return described(value), ""


def described(value):
    return Said(f"{value!r}, of type {type(value).__name__}")


def shown(value):
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:12]}... ({len(text)} characters)"


def check_calls(check: Check, function, calls, expected):
    """`calls` are pairs of arguments and keyword arguments; `expected` is a kind of error, or gives what comes back."""
    for args, kwargs in calls:
        text = ", ".join([*map(shown, args), *(f"{name}={shown(value)}" for name, value in kwargs.items())])
        check.step(f"{function.__name__}({text})")
        result = attempt(check, function, *args, **kwargs)[0]
        wanted = expected(args[1]) if callable(expected) else Said(expected)
        check.equal(f"what {function.__name__}({text}) comes to", result, wanted)


# check_int


def check_int_of(engine: Engine):
    return engine.get("validation:check_int")


def ints(values, minimum):
    return [(("max_tokens", value, minimum), {}) for value in values]


@case("ch03.check_int")
def good_numbers(engine, check):
    """Integers from the smallest accepted value on come back as they are."""
    for minimum, values in [(1, [1, 2, 64, 10**30]), (0, [0, 5]), (-1, [-1, 0, 7]), (12, [12, 13])]:
        check_calls(check, check_int_of(engine), ints(values, minimum), lambda value: described(int(value)))


@case("ch03.check_int")
def too_small(engine, check):
    """Integers below the smallest accepted value are refused."""
    for minimum, values in [(1, [0, -1, -(10**30)]), (0, [-1]), (-1, [-2]), (12, [11, 1, 0])]:
        check_calls(check, check_int_of(engine), ints(values, minimum), "ValueError")


@case("ch03.check_int")
def integers_of_numpy(engine, check):
    """A number that comes out of a NumPy array is an integer, too. What comes back is an int of Python."""
    good = [np.int64(3), np.uint8(200), np.int16(1)]
    check_calls(check, check_int_of(engine), ints(good, 1), lambda value: described(int(value)))
    check_calls(check, check_int_of(engine), ints([np.uint8(0), np.int64(-7)], 1), "ValueError")


@case("ch03.check_int")
def true_and_false(engine, check):
    """Somebody wrote max_tokens=True."""
    check_calls(check, check_int_of(engine), ints([True, False], 0), "TypeError")


@case("ch03.check_int")
def what_is_no_integer(engine, check):
    """Other types, some of which look like an integer, and some of which Python would make one of."""
    values = [3.0, 3.7, np.float64(3), Fraction(3), "3", "many", None, [3], 3j, math.nan, math.inf]
    check_calls(check, check_int_of(engine), ints(values, 1), "TypeError")


@case("ch03.check_int")
def what_the_messages_say(engine, check):
    """Whoever reads the error has to find the argument and the value in it, and what would have been accepted."""
    function = check_int_of(engine)
    for value, minimum in [(-77, 12), ("abc", 12), (4.5, 12)]:
        check.step(f"check_int('top_k', {value!r}, {minimum})")
        message = attempt(check, function, "top_k", value, minimum)[1]
        check.true("the message names the argument, top_k", "top_k" in message)
        check.true(f"the message shows the value, {value!r}", repr(value) in message)
        if value == -77:
            check.true("the message says from where on numbers are accepted, 12", "12" in message)


# check_float


def check_float_of(engine: Engine):
    return engine.get("validation:check_float")


def floats(values, **range_):
    return [(("temperature", value), range_) for value in values]


def as_float(value):
    return described(float(value))


@case("ch03.check_float")
def finite_numbers(engine, check):
    """Numbers in the range come back as floats; integers are numbers, too."""
    check_calls(check, check_float_of(engine), floats([0.5, 1e-9, 1e308, 2, 10**15]), as_float)
    check_calls(check, check_float_of(engine), floats([0.25, -0.5], minimum=-1.0, maximum=1.0), as_float)


@case("ch03.check_float")
def the_ends_of_the_range(engine, check):
    """Both ends belong to the range, and what is beyond them does not."""
    function = check_float_of(engine)
    check_calls(check, function, floats([0.0, 0]), as_float)
    check_calls(check, function, floats([0.0, 1.0, 1], maximum=1.0), as_float)
    check_calls(check, function, floats([2.0, 3.0], minimum=2.0, maximum=3.0), as_float)
    check_calls(check, function, floats([-1e-9, -3, -1e308]), "ValueError")
    check_calls(check, function, floats([1.0000001, 2, 1e308], maximum=1.0), "ValueError")
    check_calls(check, function, floats([1.9, 3.1], minimum=2.0, maximum=3.0), "ValueError")


@case("ch03.check_float")
def not_a_number_and_infinity(engine, check):
    """A computation went wrong somewhere, and its result arrives as a temperature. It is a float, and no number."""
    function = check_float_of(engine)
    for range_, words in (({}, "from 0"), ({"maximum": 1.0}, "from 0 to 1")):
        others = []
        for value in (math.nan, math.inf, -math.inf):
            check.step(f"check_float('temperature', {value}{', maximum=1.0' if range_ else ''})")
            result = attempt(check, function, "temperature", value, **range_)[0]
            others += [] if result == "ValueError" else [f"{value} comes to {result}"]
        got = Said("; ".join(others) or "none of them")
        check.equal(f"which of nan, inf and -inf come to anything but ValueError, {words}", got, Said("none of them"))


@case("ch03.check_float")
def integers_beyond_any_float(engine, check):
    """An integer of Python may have any number of digits; no float is as large."""
    check_calls(check, check_float_of(engine), floats([10**400, -(10**400)]), "ValueError")


@case("ch03.check_float")
def numbers_of_other_libraries(engine, check):
    """A float of NumPy in half the precision, an integer of NumPy, and a fraction."""
    check_calls(check, check_float_of(engine), floats([np.float32(0.5), np.int64(2), Fraction(1, 4)]), as_float)
    check_calls(check, check_float_of(engine), floats([np.float32("nan"), np.float32("inf")]), "ValueError")


@case("ch03.check_float")
def true_is_no_number(engine, check):
    """Somebody wrote temperature=True."""
    check_calls(check, check_float_of(engine), floats([True, False]), "TypeError")


@case("ch03.check_float")
def what_is_no_number(engine, check):
    """Texts, also those that look like a number, and other things."""
    check_calls(check, check_float_of(engine), floats(["0.5", "hot", None, [0.5], 1j]), "TypeError")


@case("ch03.check_float")
def what_these_messages_say(engine, check):
    """Whoever reads the error has to find the argument and the value in it."""
    function = check_float_of(engine)
    for value in (-7.25, 8.5, math.nan, "warm"):
        check.step(f"check_float('top_p', {value!r}, maximum=1.0)")
        message = attempt(check, function, "top_p", value, maximum=1.0)[1]
        check.true("the message names the argument, top_p", "top_p" in message)
        check.true(f"the message shows the value, {value!r}", repr(value) in message)


# normalize_stop


def normalize_stop_of(engine: Engine):
    return engine.get("sampling_params:normalize_stop")


def check_stop(engine: Engine, check: Check, values, expected):
    function = normalize_stop_of(engine)
    for text, value in values:
        check.step(f"normalize_stop({text})")
        check.equal(f"what normalize_stop({text}) comes to", attempt(check, function, value)[0], Said(expected))


@case("ch03.normalize_stop")
def one_string(engine, check):
    """A request wants to stop at END. The string stands on its own, without a list around it."""
    for text in ("END", ".", "\n", "the end"):
        check_stop(engine, check, [(repr(text), text)], described((text,)))


@case("ch03.normalize_stop")
def no_stop_strings(engine, check):
    """None, or a collection with nothing in it: the request does not stop at any text."""
    check_stop(engine, check, [("None", None), ("[]", []), ("()", ())], described(()))


@case("ch03.normalize_stop")
def several_strings(engine, check):
    """A list or a tuple of stop strings, in the order given."""
    strings = ["one", "two", " ", "three words here"]
    values = [("a list of four", strings), ("a tuple of four", tuple(strings))]
    check_stop(engine, check, values, described(tuple(strings)))
    check.equal("the list that was given, afterwards", strings, ["one", "two", " ", "three words here"])


@case("ch03.normalize_stop")
def something_to_go_through_once(engine, check):
    """Stop strings from an iterator and from a generator: they come only once."""
    values = [("iter(['end', 'stop'])", iter(["end", "stop"])), ("a generator", (word for word in ("end", "stop")))]
    check_stop(engine, check, values, described(("end", "stop")))


@case("ch03.normalize_stop")
def the_empty_string(engine, check):
    """Every text contains the empty string: a request that stops there would never say anything."""
    values = [("''", ""), ("['']", [""]), ("['end', '']", ["end", ""]), ("('', 'end')", ("", "end"))]
    check_stop(engine, check, values, "ValueError")


@case("ch03.normalize_stop")
def what_is_no_string(engine, check):
    """Numbers, bytes, and lists with such things in them."""
    values = [5, 1.5, True, [3], ["end", None], [["end"]], [b"end"], b"end"]
    check_stop(engine, check, [(repr(value), value) for value in values], "TypeError")


@case("ch03.normalize_stop")
def what_its_messages_say(engine, check):
    """Whoever reads the error has to find the argument and what was wrong in it."""
    function = normalize_stop_of(engine)
    for value, wrong in [([41], "41"), ("", "''"), (["end", ""], "''"), (2.75, "2.75")]:
        check.step(f"normalize_stop({value!r})")
        message = attempt(check, function, value)[1]
        check.true("the message names the argument, stop", "stop" in message)
        check.true("the message says what is accepted: a non-empty string", "non-empty string" in message)
        check.true(f"the message shows what was wrong, {wrong}", wrong in message)


@case("ch03.normalize_stop")
def in_sampling_params(engine, check):
    """The parameters of a request call it."""
    params_class = engine.get("sampling_params:SamplingParams")
    for stop, expected in [("END", ("END",)), (None, ()), (["a", "b"], ("a", "b"))]:
        check.step(f"SamplingParams(stop={stop!r})")
        check.equal("its field stop", params_class(stop=stop).stop, expected)


# num_blocks_that_fit


def packed(total, in_use, activations, utilization, block_bytes):
    """Blocks are put in, one after the other, as long as everything together stays under the limit."""
    limit, filled, count = Fraction(utilization) * total, in_use + activations, 0
    while filled + block_bytes <= limit:
        filled, count = filled + block_bytes, count + 1
    return count


def check_fit(engine: Engine, check: Check, *arguments):
    names = ("total", "in_use", "activations", "utilization", "block_bytes")
    text = ", ".join(f"{name}={value}" for name, value in zip(names, arguments, strict=True))
    check.step(f"num_blocks_that_fit({text})")
    got = attempt(check, engine.get("utils.memory:num_blocks_that_fit"), *arguments)[0]
    check.equal(f"the blocks for {text}", got, described(packed(*arguments)))


@case("ch03.num_blocks_that_fit")
def an_empty_device(engine, check):
    """Nothing is in use, and all of the memory may be filled."""
    for total, block_bytes in [(1000, 100), (1000, 1000), (1 << 20, 4096)]:
        check_fit(engine, check, total, 0, 0, 1.0, block_bytes)


@case("ch03.num_blocks_that_fit")
def blocks_are_whole(engine, check):
    """The last bit of memory is too small for one more block."""
    for total in (1099, 1001, 999, 100, 101):
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
def nothing_fits(engine, check):
    """Too little is left, or the limit is passed already before the first block."""
    for arguments in [(1000, 950, 0, 1.0, 100), (1000, 600, 0, 0.5, 10), (1000, 500, 300, 0.75, 10), (80, 0, 0, 1, 81)]:
        check_fit(engine, check, *arguments)


@case("ch03.num_blocks_that_fit")
def as_packing_by_hand(engine, check):
    """Devices of 8, 24 and 80 GB with weights, steps and blocks of many sizes; the answer is packed block by block."""
    rng = random.Random(3)
    for total in (8 * 10**9, 24 * 10**9, 80 * 10**9):
        for utilization in (0.5, 0.75, 0.9, 0.95):
            in_use, activations = rng.randrange(total // 2), rng.randrange(total // 8)
            check_fit(engine, check, total, in_use, activations, utilization, rng.randrange(10**7, 10**8))
