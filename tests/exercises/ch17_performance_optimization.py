"""Grader of chapter 17. What is right is said by a machine that fetches and stores, by paths, by the plain engine."""

import itertools
import math
import numbers
import random
from fractions import Fraction

import torch
import torch.nn.functional as F

import nanovllm
from exercises.kit import lever_work
from exercises.kit.grading import Check, Engine, case
from nanovllm.layers.attention import Attention
from nanovllm.utils.swap import swap


def would_be(what, found):
    """A mistake that makes a number, if few do. Those that do make the others, too: so the first is enough."""
    return f"{what} if {found[0]}." if 1 <= len(found) <= 3 else None


def explaining(mistakes, formula, shape, ask, args, got, probes):
    """Those of the mistakes that explain this answer, and what else the function answers.

    Args:
        mistakes: by what they are called.
        formula: what a mistake makes of arguments.
        shape: makes answers comparable.
        ask: the function that is judged.
        probes: other arguments for it. Where it raises an error, that says nothing.
    """
    found = [text for text, mistake in mistakes.items() if formula(args, mistake) == got]
    for probe in probes if found else ():
        try:
            other = shape(ask(*probe))
        except Exception:  # whatever it is, it is no answer
            continue
        found = [text for text in found if formula(probe, mistakes[text]) == other]
    return list(dict.fromkeys(found))


def changes_its_mind(shape, ask, args, got):
    """Whether the function answers the same question in another way now."""
    try:
        return shape(ask(*args)) != got
    except Exception:
        return False


CHANGES_ITS_MIND = "Asked the same again, it gives another answer: something is kept from one call to the next."

# bytes_moved


def fetch_and_store(kernels, sizes, outputs):
    """The bytes, by running: what a kernel does not hold it fetches, and then somebody must have stored it."""
    fetched, made_by, wanted = [], {}, set()
    for number, kernel in enumerate(kernels):
        held = set()
        for names, result in kernel:
            for name in names:
                if name not in held:
                    fetched.append(name)
                    held.add(name)
                    wanted.add(name)
            held.add(result)
            made_by[result] = number
    stored = [name for name in made_by if name in wanted or name in outputs]
    return sum(sizes[name] for name in itertools.chain(fetched, stored))


MOVE_MISTAKES = {
    "every operation were a kernel of its own": {"alone": True},
    "every operation were a kernel of its own, and all that it names and makes were moved": {
        "alone": True,
        "reads": "each name",
        "writes": "all",
    },
    "a tensor were read again by every operation that uses it": {"reads": "each"},
    "a tensor that one operation names twice were read twice": {"reads": "names"},
    "a tensor were read each time that an operation names it": {"reads": "each name"},
    "a kernel read what it makes itself, too": {"reads": "own too"},
    "each operation fetched all that it uses, even what its own kernel has just made": {"reads": "each, own too"},
    "nothing were read": {"reads": "none"},
    "only what no kernel makes were read": {"reads": "from outside"},
    "each tensor were read by one kernel only, and were there for all later ones": {"reads": "first"},
    "what an earlier kernel has used, read or made there, were not read again": {"reads": "first used"},
    "only the first operation of a kernel read anything": {"reads": "first operation"},
    "nothing were written": {"writes": "none"},
    "all that is made were written": {"writes": "all"},
    "only `outputs` were written, and not what later kernels use": {"writes": "outputs"},
    "what later kernels use were written, and not `outputs`": {"writes": "later"},
    "only what is both used later and one of `outputs` were written": {"writes": "both"},
    "only the next kernel counted as a later one": {"writes": "next"},
    "a tensor were written once for each kernel that uses it": {"writes": "each reader"},
    "an output that a later kernel uses were written twice": {"writes": "twice"},
    "a tensor were written once for each kernel that uses it, and once more as an output": {"writes": "each and twice"},
    "only the first kernel counted, as where a return stands inside the loop": {"kernels_counted": 1},
    "a kernel wrote what its last operation makes, and nothing else": {"writes": "last operation"},
    "a kernel wrote what its last operation makes, if somebody wants it, and nothing else": {"writes": "last wanted"},
    "what is used anywhere, if only inside its own kernel, were written": {"writes": "used anywhere"},
    "what is used inside its own kernel were not written, whoever wants it": {"writes": "not used inside"},
    "an output that its own kernel uses were not written": {"writes": "outputs not used inside"},
    "the last operation of a kernel wrote what it makes, also if nobody wants it": {"writes": "last too"},
    "a name that is part of an output's name were an output, too": {"writes": "part of a name"},
    "of tensors with as many bytes as each other a kernel moved only one": {"unit": "set"},
    "the last kernel wrote all that it makes": {"writes": "all of the last"},
    "tensors were counted, not their bytes": {"unit": "count"},
    "all were twice as much": {"factor": 2},
}


def move_formula(kernels, sizes, outputs, alone=False, reads="right", writes="right", unit="", factor=1,
                 kernels_counted=None):  # fmt: skip
    """The bytes, with some mistakes in them."""
    if alone:
        kernels = [[operation] for kernel in kernels for operation in kernel]
    sizes = dict.fromkeys(sizes, 1) if unit == "count" else sizes
    all_made = {name for kernel in kernels for _, name in kernel}
    read, written, seen, inside, different = [], [], set(), set(), 0
    for i, kernel in enumerate(kernels[:kernels_counted]):
        made, used = [name for _, name in kernel], [name for names, _ in kernel for name in dict.fromkeys(names)]
        need = [name for name in dict.fromkeys(used) if name not in made]
        later = [[name for names, _ in other for name in names] for other in kernels[i + 1 :]]
        readers = {name: sum(name in other for other in later) for name in made}
        named, before = [], set()
        for names, _ in kernel:
            named += [name for name in names if name not in made and name not in before]
            before.update(names)
        read += {
            "right": need,
            "names": named,
            "each name": [name for names, _ in kernel for name in names if name not in made],
            "each": [name for name in used if name not in made],
            "own too": list(dict.fromkeys(used)),
            "each, own too": used,
            "none": [],
            "from outside": [name for name in need if name not in all_made],
            "first": [name for name in need if name not in seen],
            "first used": [name for name in need if name not in inside],
            "first operation": [name for name in dict.fromkeys(kernel[0][0]) if name not in made] if kernel else [],
        }[reads]
        seen.update(need)
        inside.update(used)
        keep = {
            "right": [n for n in made if readers[n] or n in outputs],
            "none": [],
            "all": made,
            "outputs": [n for n in made if n in outputs],
            "later": [n for n in made if readers[n]],
            "both": [n for n in made if readers[n] and n in outputs],
            "next": [n for n in made if n in outputs or (later and n in later[0])],
            "each reader": [n for n in made for _ in range(max(readers[n], int(n in outputs)))],
            "twice": [n for n in made for _ in range(int(bool(readers[n])) + int(n in outputs))],
            "each and twice": [n for n in made for _ in range(readers[n] + int(n in outputs))],
            "last operation": made[-1:],
            "last wanted": [n for n in made[-1:] if readers[n] or n in outputs],
            "last too": [n for n in made if readers[n] or n in outputs or n == made[-1]],
            "part of a name": [n for n in made if readers[n] or any(n in output for output in outputs)],
            "outputs not used inside": [n for n in made if readers[n] or (n in outputs and n not in used)],
            "used anywhere": [n for n in made if readers[n] or n in outputs or n in used],
            "not used inside": [n for n in made if n not in used and (readers[n] or n in outputs)],
            "all of the last": made if not later else [n for n in made if readers[n] or n in outputs],
        }
        written += keep[writes]
        different += sum({sizes[n] for n in need}) + sum({sizes[n] for n in keep["right"]})
    return factor * (different if unit == "set" else sum(sizes[name] for name in [*read, *written]))


def as_number(got):
    """A whole number as an int; what else it is, if it is none."""
    if isinstance(got, numbers.Integral) and not isinstance(got, bool):
        return int(got)
    return got if isinstance(got, numbers.Real) and not isinstance(got, bool) else type(got).__name__


# One kernel makes what is used inside it, in a later one, at the end, or not at all; all sums are different.
MOVE_PROBES = [
    ([[(("x", "w"), "a"), (("a", "x"), "b"), (("a", "b"), "c"), (("b",), "d")], [(("a", "w"), "e")],
      [(("e", "c"), "f"), (("e", "a"), "g")]],
     {"x": 1, "w": 5, "a": 25, "b": 125, "c": 625, "d": 3125, "e": 15625, "f": 78125, "g": 390625}, {"c", "g", "e"}),
    ([[(("x",), "a"), (("a", "x"), "aa"), (("aa",), "b")], [(("x", "b", "x"), "ab")],
      [(("a", "ab"), "y"), (("y",), "z")]],
     {"x": 7, "a": 49, "aa": 343, "b": 2401, "ab": 16807, "y": 117649, "z": 823543}, {"aa", "y", "z"}),
]  # fmt: skip


def probes_of_bytes():
    """Fresh ones, for functions that change what they are given."""
    return [
        ([list(kernel) for kernel in kernels], dict(sizes), set(outputs)) for kernels, sizes, outputs in MOVE_PROBES
    ]


def wrong_bytes(args, ask):
    """What a wrong number of bytes means; `ask` is the function that gave it."""
    right = fetch_and_store(*args)
    fresh = [([(tuple(names), made) for names, made in kernel]) for kernel in args[0]], dict(args[1]), set(args[2])

    def says(got):
        if got == "None":
            return "None came back: the number has to be returned."
        number = got if isinstance(got, numbers.Real) and not isinstance(got, bool) else None
        if number is None:
            return "What comes back is no whole number of bytes."
        if number == right:
            return f"The number is right, but of type {type(got).__name__}. Bytes are whole: an int is promised."
        if changes_its_mind(as_number, ask, fresh, number):
            return CHANGES_ITS_MIND
        known = MOVE_MISTAKES.items()
        pairs = itertools.combinations(known, 2)
        pairs = {f"{one}, and {other}": {**a, **b} for (one, a), (other, b) in pairs if not a.keys() & b.keys()}
        for mistakes in MOVE_MISTAKES, pairs:
            found = explaining(mistakes, lambda given, mistake: move_formula(*given, **mistake), as_number, ask, args,
                               number, probes_of_bytes())  # fmt: skip
            if found:
                return would_be("That many it would be", found)
        if min(args[1].values()) > 2**24 and abs(number - right) < 1e-6 * right:
            return "It is off by less than a millionth: rounded, as float32 does it. Python's ints are exact."
        return None

    return says


def shown(kernels):
    """Kernels in one line: what each operation makes of what."""
    return " | ".join("; ".join(f"{made} = f({', '.join(names)})" for names, made in kernel) for kernel in kernels)


def move_error(error):
    return {
        "KeyError": "A name was looked up that is not there. Every tensor has its bytes in `sizes`.",
        "IndexError": "There may be no kernel, or none after this one.",
        "TypeError": "The outputs are a collection: a list or a tuple as well as a set.",
        "StopIteration": "There may be no kernel, or none after this one.",
    }.get(error)


def check_bytes(engine: Engine, check: Check, kernels, sizes, outputs, collection=set):
    given = ([[(tuple(names), made) for names, made in kernel] for kernel in kernels], dict(sizes), collection(outputs))
    copy = ([list(kernel) for kernel in given[0]], dict(given[1]), collection(outputs))
    numbers_ = ", ".join(f"{name} {size}" for name, size in sizes.items())
    run = f"run {len(check.steps) + 1}"
    check.step(
        f"{run}: {shown(kernels) or 'no kernels'}; bytes: {numbers_}; outputs {sorted(outputs)}", says=move_error
    )
    function = engine.get("labs:bytes_moved")
    got = function(*given)
    if isinstance(got, numbers.Integral) and not isinstance(got, bool):
        got = int(got)
    elif not (isinstance(got, numbers.Real) and not isinstance(got, bool)):
        got = repr(got) if got is None else type(got).__name__
    right = fetch_and_store(kernels, sizes, outputs)
    says = wrong_bytes((kernels, sizes, outputs), function)
    is_right = check.equal(f"the bytes that are moved, {run}", got, right, says=says)
    if is_right:
        check.equal("the type of the number", type(got).__name__, "int", says="Bytes are whole: an int is promised.")
    same = all(one == other for one, other in zip(given, copy, strict=True))
    check.true("what was passed is as it was", same, says="Kernels, sizes and outputs belong to the caller.")


@case("ch17.bytes_moved")
def one_operation(engine, check):
    """A kernel with a single operation: it reads two tensors, and writes one."""
    check_bytes(engine, check, [[("ab", "y")]], {"a": 10, "b": 300, "y": 7000}, {"y"})


@case("ch17.bytes_moved")
def fused_and_not(engine, check):
    """Two operations in a row, as two kernels and as one."""
    first, second = (("x",), "h"), (("h", "w"), "y")
    sizes = {"x": 10, "h": 300, "w": 7000, "y": 20000}
    check_bytes(engine, check, [[first], [second]], sizes, {"y"})
    check_bytes(engine, check, [[first, second]], sizes, {"y"})


@case("ch17.bytes_moved")
def used_twice(engine, check):
    """A tensor that two operations use: in one kernel, and in two."""
    one, other = (("x",), "a"), (("x", "a"), "b")
    sizes = {"x": 1000, "a": 30, "b": 7}
    check_bytes(engine, check, [[one, other]], sizes, {"b"})
    check_bytes(engine, check, [[one], [other]], sizes, {"b"})
    check_bytes(engine, check, [[one, (("x", "x"), "b")]], sizes, {"a", "b"})
    check_bytes(engine, check, [[(("x", "x"), "b")]], sizes, {"b"})


@case("ch17.bytes_moved")
def somebody_needs_it_later(engine, check):
    """What is made and used inside a kernel is needed once more: by the kernel after the next, or at the end."""
    kernels = [[(("x",), "s"), (("s",), "h")], [(("h",), "p")], [(("p", "s"), "y")]]
    sizes = {"x": 11, "s": 200, "h": 3000, "p": 40000, "y": 500000}
    check_bytes(engine, check, kernels, sizes, {"y"})
    check_bytes(engine, check, kernels, sizes, {"y", "h"})
    check_bytes(engine, check, kernels[:1], sizes, {"s", "h"})
    check_bytes(engine, check, kernels, sizes, {"s", "y"})


@case("ch17.bytes_moved")
def nobody_needs_it(engine, check):
    """Something is made that nobody uses, in the last kernel and before."""
    kernels = [[(("x",), "a"), (("x", "w"), "b")], [(("b",), "c"), (("b",), "y")]]
    sizes = {"x": 3, "w": 50, "a": 700, "b": 11000, "c": 130000, "y": 1700000}
    check_bytes(engine, check, kernels, sizes, {"y"})
    check_bytes(engine, check, kernels, sizes, {"c"})
    check_bytes(engine, check, kernels, sizes, {"b"})


@case("ch17.bytes_moved")
def in_a_list(engine, check):
    """The outputs come in a list, and in a tuple."""
    kernels, sizes = [[("ab", "y"), (("y",), "z")]], {"a": 10, "b": 300, "y": 7000, "z": 20000}
    check_bytes(engine, check, kernels, sizes, ["y", "z"], list)
    check_bytes(engine, check, kernels, sizes, ["z"], tuple)


@case("ch17.bytes_moved")
def nothing_at_all(engine, check):
    """No kernels; and a kernel without operations."""
    check_bytes(engine, check, [], {"x": 5}, set())
    check_bytes(engine, check, [[]], {"x": 5}, set())
    check_bytes(engine, check, [[(("x",), "y")], [], [(("y",), "z")]], {"x": 5, "y": 70, "z": 900}, {"z"})


@case("ch17.bytes_moved")
def as_many_bytes(engine, check):
    """Tensors that have as many bytes as each other, in one kernel."""
    check_bytes(engine, check, [[("ab", "y"), (("y",), "z")]], {"a": 40, "b": 40, "y": 7, "z": 7}, {"y", "z"})


@case("ch17.bytes_moved")
def many_bytes(engine, check):
    """Tensors of several gigabytes, and the number has to be exact."""
    sizes = {"a": 2**33 + 1, "b": 2**32 + 3, "y": 2**31 + 5, "z": 2**30 + 9}
    check_bytes(engine, check, [[("ab", "y")], [(("y",), "z")]], sizes, {"z"})


@case("ch17.bytes_moved")
def names_in_names(engine, check):
    """The name of a tensor is part of another one's: y, my, my_y."""
    kernels = [[(("x",), "y"), (("y",), "my"), (("my",), "my_y")]]
    for outputs in ({"my_y"}, {"my"}, {"y", "my_y"}):
        check_bytes(engine, check, kernels, {"x": 10, "y": 300, "my": 7000, "my_y": 20000}, outputs)


@case("ch17.bytes_moved")
def random_chains(engine, check):
    """Random operations, cut into kernels at random places."""
    rng = random.Random(17)
    for _ in range(12):
        names, operations = [f"x{i}" for i in range(rng.randint(1, 3))], []
        for i in range(rng.randint(2, 9)):
            operations.append((tuple(rng.choices(names, k=rng.randint(1, 3))), f"t{i}"))
            names.append(f"t{i}")
        kernels, rest = [], operations
        while rest:
            count = rng.randint(1, 4)
            kernels, rest = [*kernels, rest[:count]], rest[count:]
        made = [name for _, name in operations]
        sizes = {name: rng.randrange(1000, 10**6) for name in names}
        check_bytes(engine, check, kernels, sizes, {made[-1], *rng.sample(made, rng.randint(0, 2))})


# end_of_step


def longest_path(launches, kernels):
    """The end, as a fraction: some calls, then from one kernel on all kernels, whatever takes longest."""
    starts = range(len(kernels))
    return max((sum(launches[: i + 1]) + sum(kernels[i:]) for i in starts), default=Fraction(0))


END_MISTAKES = {
    "the CPU waited for each kernel before it launched the next": lambda la, ke: sum(la) + sum(ke),
    "only the slower of CPU and GPU counted": lambda la, ke: max(sum(la), sum(ke)),
    "calls took no time": lambda la, ke: sum(ke),
    "only the first call took time": lambda la, ke: sum(la[:1]) + sum(ke),
    "only calls took time": lambda la, ke: sum(la),
    "only the last kernel came after the calls": lambda la, ke: sum(la) + sum(ke[-1:]),
    "a kernel that waits for its call were done when that call returns": lambda la, ke: max(
        sum(la), path(la, ke, early=True)
    ),
    "only the first pair counted, as where a return stands inside the loop": lambda la, ke: sum(la[:1]) + sum(ke[:1]),
    "a kernel could begin when its call begins": lambda la, ke: path(la, ke, early=True),
    "each kernel and its own call ran at the same time, and the longer counted": lambda la, ke: sum(map(max, la, ke)),
    "a kernel could begin before the one before it is done": lambda la, ke: max(
        (sum(la[: i + 1]) + ke[i] for i in range(len(ke))), default=0
    ),
    "the shorter of the two waits counted": lambda la, ke: path(la, ke, join=min),
    "all kernels began after all calls": lambda la, ke: sum(la) + sum(ke),
    "the last kernel were not counted": lambda la, ke: longest_path(la[:-1], ke[:-1]),
    "the last kernel were missing, though its call is counted": lambda la, ke: max(
        sum(la), longest_path(la[:-1], ke[:-1])
    ),
    "the first call were not counted": lambda la, ke: longest_path([0 * x for x in la[:1]] + la[1:], ke),
    "the larger counted of the first call with all kernels, and all calls with the last kernel": lambda la, ke: max(
        sum(la[:1]) + sum(ke), sum(la) + sum(ke[-1:])
    ),
    "the larger counted of the first call with all kernels, and all calls": lambda la, ke: max(
        sum(la[:1]) + sum(ke), sum(la)
    ),
    "each call were made at the very beginning, and not after those before it": lambda la, ke: at_once(la, ke),
    "a kernel of no time were left out, with its call": lambda la, ke: path(*without(la, ke, 1)),
    "a call of no time were left out, with its kernel": lambda la, ke: path(*without(la, ke, 0)),
    "a kernel could begin only when the call after it has returned": lambda la, ke: path(
        [*la[1:], 0][: len(ke)], ke, first=la[:1]
    ),
    "kernels ran from the shortest to the longest": lambda la, ke: path(la, sorted(ke)),
    "kernels ran from the longest to the shortest": lambda la, ke: path(la, sorted(ke)[::-1]),
    "the result were rounded to whole microseconds": lambda la, ke: round(float(longest_path(la, ke)), 6),
    "times were rounded to whole microseconds on the way": lambda la, ke: path(la, ke, step=lambda t: round(t, 6)),
    "the result were cut to whole seconds": lambda la, ke: int(longest_path(la, ke)),
    "the result were rounded to milliseconds": lambda la, ke: round(float(longest_path(la, ke)), 3),
    "the result were rounded to hundredths of milliseconds": lambda la, ke: round(float(longest_path(la, ke)), 5),
    "a call began only when the kernel of the call before it is under way": lambda la, ke: stalled(la, ke),
    "only what the GPU waits were counted": lambda la, ke: longest_path(la, ke) - sum(ke),
    "the result were in milliseconds": lambda la, ke: 1000 * longest_path(la, ke),
    "calls and kernels were exchanged": lambda la, ke: longest_path(ke, la),
    "the longest kernel counted for all": lambda la, ke: longest_path(la, [max(ke)] * len(ke)) if ke else 0,
}


def path(launches, kernels, early=False, join=max, first=(), step=lambda time: time):
    launched = done = sum(first)
    for launch, kernel in zip(launches, kernels, strict=True):
        begin = launched if early else launched + launch
        launched += launch
        done = step(join(begin, done) + kernel)
    return done


def without(launches, kernels, which):
    """Without the pairs whose call, or whose kernel, takes no time."""
    pairs = [pair for pair in zip(launches, kernels, strict=True) if pair[which]]
    return [launch for launch, _ in pairs], [kernel for _, kernel in pairs]


def at_once(launches, kernels):
    done = 0
    for launch, kernel in zip(launches, kernels, strict=True):
        done = max(launch, done) + kernel
    return done


def stalled(launches, kernels):
    """A CPU that makes the next call only when the kernel before has begun."""
    launched = done = 0
    for launch, kernel in zip(launches, kernels, strict=True):
        launched = max(launched + launch, done)
        done = launched + kernel
    return done


def rounded(value):
    return float(f"{float(value):.9g}")


def as_seconds(got):
    is_number = isinstance(got, numbers.Real) and not isinstance(got, bool) and math.isfinite(got)
    return rounded(got) if is_number else repr(got) if got is None else type(got).__name__


# Microseconds of calls and of kernels: now one waits, now the other, and some take no time.
END_PROBES = [
    ([10.25, 3, 0, 41.5, 2, 0, 7], [20, 0, 5.75, 3, 19, 11, 0]),
    ([31, 7, 55.5, 4, 4, 60, 2], [13.25, 40, 0, 17, 2, 3, 29]),
    ([9, 2.5, 30, 4, 70.25], [21, 6, 11.5, 3, 1.75]),  # ends with a call
]


def wrong_end(args, ask):
    right = rounded(longest_path(*args))

    def asked(launches, kernels):
        return ask([float(value) for value in launches], [float(value) for value in kernels])

    def says(got):
        if got == "None":
            return "None came back: the seconds have to be returned."
        if not isinstance(got, float):
            return "What comes back is no number of seconds."
        if got == right:
            return None
        if changes_its_mind(as_seconds, asked, args, got):
            return CHANGES_ITS_MIND
        probes = [[in_seconds(values) for values in probe] for probe in END_PROBES]
        found = explaining(END_MISTAKES, lambda given, formula: rounded(formula(*given)), as_seconds, asked, args, got,
                           probes)  # fmt: skip
        return would_be("So long it would take", found)

    return says


def end_error(error):
    return {"IndexError": "There may be no kernel at all.", "ValueError": "There may be no kernel at all."}.get(error)


TUPLE_ERRORS = dict.fromkeys(
    ["TypeError", "AttributeError"],
    "The times are in tuples here. They can be read as lists can, but not changed, or added to a list.",
)


def in_seconds(microseconds):
    return [Fraction(value) / 10**6 for value in microseconds]


def check_end(engine: Engine, check: Check, launches, kernels, collection=list):
    """Times are given in microseconds, with quarters at most, so that they are exact."""
    exact = [in_seconds(values) for values in (launches, kernels)]
    given = [collection(value / 10**6 for value in values) for values in (launches, kernels)]
    copy = [collection(values) for values in given]
    few = f"{launches} and {kernels}" if len(kernels) < 9 else f"{len(kernels)} calls and kernels"
    says = TUPLE_ERRORS if collection is tuple else end_error if not kernels else None
    run = f"run {len(check.steps) + 1}"
    check.step(f"{run}: microseconds of the calls and of the kernels: {few}", says=says)
    function = engine.get("labs:end_of_step")
    got, right = as_seconds(function(*given)), rounded(longest_path(*exact))
    check.equal(f"seconds until the last kernel is done, {run}", got, right, says=wrong_end(exact, function))
    check.equal("the lists afterwards", given, copy, says="The lists belong to the caller, and are others now.")


@case("ch17.end_of_step")
def long_kernels(engine, check):
    """Kernels that take longer than calls: the CPU is far ahead."""
    check_end(engine, check, [7, 5, 6], [100, 210, 330])


@case("ch17.end_of_step")
def short_kernels(engine, check):
    """Kernels that take less than calls: the GPU waits for each of them."""
    check_end(engine, check, [50, 61, 72], [9, 4, 3])


@case("ch17.end_of_step")
def now_one_now_the_other(engine, check):
    """A long kernel first, then many short ones; and the other way round."""
    check_end(engine, check, [10, 11, 12, 13, 14], [35, 2, 3, 1, 4])
    check_end(engine, check, [10, 11, 12, 13, 14], [2, 3, 1, 4, 90])
    check_end(engine, check, [40, 5, 5, 30, 3], [10, 25, 7, 8, 12])


@case("ch17.end_of_step")
def a_graph(engine, check):
    """A graph: one call for all kernels, then calls that take no time."""
    check_end(engine, check, [21, 0, 0, 0, 0, 0], [4, 5, 6, 7, 8, 9])


@case("ch17.end_of_step")
def kernels_without_work(engine, check):
    """Some kernels have nothing to do and take no time; they are launched all the same."""
    check_end(engine, check, [10, 20, 30, 5], [40, 0, 0, 7])
    check_end(engine, check, [10, 20], [3, 0])


@case("ch17.end_of_step")
def one_and_none(engine, check):
    """A single kernel, and none at all."""
    check_end(engine, check, [13], [29])
    check_end(engine, check, [], [])


@case("ch17.end_of_step")
def parts_of_microseconds(engine, check):
    """Times that are no whole microseconds."""
    check_end(engine, check, [1.25, 0.5, 0.75], [0.25, 3.5, 0.25])
    check_end(engine, check, [49.5, 49.25], [31.75, 0.5])


@case("ch17.end_of_step")
def in_tuples(engine, check):
    """The times come in tuples."""
    check_end(engine, check, [7, 50, 6], [100, 3, 33], tuple)
    check_end(engine, check, [], [], tuple)


@case("ch17.end_of_step")
def random_steps(engine, check):
    """Random calls and kernels."""
    rng = random.Random(17)
    for _ in range(12):
        count, longest = rng.randint(2, 40), rng.choice([10, 50, 200])
        check_end(
            engine,
            check,
            [rng.randint(1, 60) for _ in range(count)],
            [rng.randint(1, longest) for _ in range(count)],
        )


# my_lever: an open exercise

NO_TEXT = "The greedy tokens are others than those of the plain engine: the lever computes something else."
OTHER_NUMBERS = (
    "The tokens are the same, and the log-probabilities are not: something is computed wrongly, and these prompts have "
    "not noticed. What does each token attend to, and to nothing else?"
)
NO_TABLES = "A prefill has no `context_lens`, and without cached tokens no `block_tables`: they are None there."
HEADS = "if query heads took turns with the KV heads (0, 1, 0, 1): neighbors share one (0, 0, 1, 1)"
NO_MASK = "if nothing hid what fills short texts up to the longest: a mask is missing"
TOLERANCE = 2e-3  # of a log-probability; in float32, another order of additions makes less


# What a decode in one call may do wrong: the tokens of each sequence that it sees, and the grouping of heads.
LEVER_MISTAKES = {
    NO_MASK: lambda places, lens, size: places < 10**9,
    "if only whole blocks were hidden, and the rest of the last block of a text seen": lambda places, lens, size: (
        places < -(-lens // size) * size
    ),
    "if each token saw one place too many": lambda places, lens, size: places <= lens,
    "if each token did not see itself": lambda places, lens, size: places < lens - 1,
    "if each token saw the first one only, as with is_causal and a single query": lambda places, lens, size: places < 1,
    HEADS: lambda places, lens, size: places < lens,
}


def wrong_lever(text, filler=-1):
    """A lever with one of the mistakes, in our engine; tables are filled up with the block `filler`."""

    class Wrong(Attention):
        def attend(self, q, k, v, context):
            if context.is_prefill:
                return super().attend(q, k, v, context)
            table = context.block_tables.clamp(min=filler)
            keys, values = (c[table].flatten(1, 2).transpose(1, 2) for c in (self.k_cache, self.v_cache))
            places, lens = torch.arange(keys.shape[2]), context.context_lens[:, None]
            is_seen = LEVER_MISTAKES[text](places, lens, self.k_cache.shape[1]).expand(len(q), -1)[:, None, None]
            heads = self.num_heads // self.num_kv_heads
            many = [
                x.repeat(1, heads, 1, 1) if text == HEADS else x.repeat_interleave(heads, 1) for x in (keys, values)
            ]
            return F.scaled_dot_product_attention(q[:, :, None], *many, is_seen, scale=self.scale)[:, :, 0]

    return lambda model, sampler: swap(model, Attention, Wrong)


def which_lever(asked, max_tokens, options, found):
    """What a wrong lever does, if one of the known mistakes gives these very answers."""
    for text, filler in [*((text, -1) for text in LEVER_MISTAKES), (NO_MASK, 0)]:
        with lever_work.engine_with(nanovllm, wrong_lever(text, filler), **options) as llm:
            answers = lever_work.answers(nanovllm, llm, asked, max_tokens, logprobs=0)
        same = all(one["token_ids"] == two["token_ids"] for one, two in zip(answers, found, strict=True))
        if same and off_by(answers, found) < TOLERANCE:
            return f"These very answers come {text}."
    return None


def off_by(some, others):
    """How far log-probabilities of the same tokens are apart, at most."""
    pairs = [(p[t], o[t]) for one, two in zip(some, others, strict=True)
             for p, o, t in zip(one["logprobs"], two["logprobs"], one["token_ids"], strict=True)]  # fmt: skip
    return max(abs(p - o) for p, o in pairs)


def check_same(engine: Engine, check: Check, asked, max_tokens, **options):
    """The answers with the lever are those without it."""
    package, lever = engine.package.load(), engine.get("labs:my_lever")
    check.step(
        f"{len(asked)} prompts of {min(map(len, asked))} to {max(map(len, asked))} tokens, answers of {max_tokens}"
        + "".join(f", {name}={value}" for name, value in options.items()),
        says=dict.fromkeys(["TypeError", "AttributeError"], NO_TABLES),
    )
    found = []
    for chosen in (None, lever):
        with lever_work.engine_with(package, chosen, **options) as llm:
            answers = lever_work.answers(package, llm, asked, max_tokens, logprobs=0)
        if failed := [answer["error"] for answer in answers if answer["finish_reason"] == "error"]:
            raise RuntimeError(failed[0])
        found.append(answers)
    plain, other = found
    same = [one["token_ids"] == two["token_ids"] for one, two in zip(plain, other, strict=True)]

    def says(otherwise):
        return lambda _: which_lever(asked, max_tokens, options, other) or otherwise

    if not check.true("the same tokens as without the lever", all(same), says=says(NO_TEXT)):
        return False
    is_close = off_by(plain, other) < TOLERANCE
    return check.true("the same log-probabilities, up to rounding", is_close, says=says(OTHER_NUMBERS))


def some_prompts(seed, count, least, most):
    rng = random.Random(seed)
    return [[rng.randrange(5, 2000) for _ in range(rng.randint(least, most))] for _ in range(count)]


@case("ch17.my_lever")
def one_alone(engine, check):
    """A single request, whose text fills several blocks."""
    check_same(engine, check, some_prompts(1, 1, 40, 40), 20)


@case("ch17.my_lever")
def very_different_lengths(engine, check):
    """Requests of one token and of fifty, side by side; the short ones end first."""
    check_same(engine, check, [[7], *some_prompts(2, 3, 48, 50), [9, 11], *some_prompts(3, 2, 14, 18)], 12)


@case("ch17.my_lever")
def a_small_pool(engine, check):
    """Little memory: shared prefixes, prompts in pieces, requests that lose their blocks, tables in any order."""
    head = some_prompts(4, 1, 16, 16)[0]
    asked = [head + tail for tail in some_prompts(5, 5, 2, 12)] + some_prompts(6, 3, 3, 20)
    check_same(engine, check, asked, 16, kvcache_block_size=4, num_kvcache_blocks=24, enable_prefix_caching=True,
               max_num_batched_tokens=24, max_num_seqs=5)  # fmt: skip


@case("ch17.my_lever")
def it_is_faster(engine, check):
    """32 short questions at once on one core, seven times with the lever and without it, in turn."""
    package = engine.package.load()
    check.step(
        f"{lever_work.NUM_REQUESTS} prompts, answers of {lever_work.MAX_TOKENS} tokens, {lever_work.PAIRS} pairs"
    )
    found = lever_work.compare(package, engine.get("labs:my_lever"))
    if not check.true("the same tokens in all runs", found.same, says=NO_TEXT):
        return
    check.measured(f"{found.gain:.2f} times as fast as the plain engine (median of {len(found.ratios)} pairs of runs; "
                   f"they lie from {min(found.ratios):.2f} to {max(found.ratios):.2f})")  # fmt: skip
    check.true(f"at least {lever_work.BAR} times as fast", found.gain >= lever_work.BAR, says=(
        "It is right, and not fast enough yet. What does a step for 32 sequences spend its time on? The profile in "
        "this chapter says it by kind."
    ))  # fmt: skip
