"""Grader of chapter 02. What is right is said by laying out the cache, and by a machine that moves every byte."""

import itertools
import math
import numbers
import random
from fractions import Fraction
from types import SimpleNamespace

from exercises.kit import roofline_work
from exercises.kit.grading import Check, Engine, case


def would_be(what, found):
    """Which mistakes make a number, if there are few: said as what it is, a number that they would make."""
    return f"{what} if {', or if '.join(found)}." if 1 <= len(found) <= 3 else None


class Typed:
    """A value that is equal only to one of the same type."""

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return type(self.value) is type(other.value) and self.value == other.value

    __hash__ = None

    def __repr__(self):
        return repr(self.value)


# kv_bytes_per_token


def laid_out(config, element_size):
    """The cache of one token, vector by vector: [(layer, key or value, head)], each with its bytes."""
    num_heads = config["num_attention_heads"]
    num_kv_heads, head_dim = config.get("num_key_value_heads"), config.get("head_dim")
    num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    if head_dim is None:
        head_dim = len(range(0, config["hidden_size"], num_heads))
    cells = itertools.product(range(config["num_hidden_layers"]), ("key", "value"), range(num_kv_heads))
    return sum(head_dim * element_size for _ in cells)


KV_MISTAKES = {
    "the value were not there, and only keys counted": {"two": 1},
    "one layer were counted": {"layers": 1},
    "every attention head had keys and values of its own": {"kv": "heads"},
    "there were one KV head in all": {"kv": 1},
    "head_dim were hidden_size divided by the attention heads, though the config says another": {"dim": "share"},
    "head_dim were hidden_size divided by the KV heads": {"dim": "kv share"},
    "a key were as long as hidden_size": {"dim": "hidden"},
    "each number took one byte": {"size": 1},
    "each number took 2 bytes, whatever element_size says": {"size": 2},
    "each number took 4 bytes, whatever element_size says": {"size": 4},
    "bits were counted, not bytes": {"two": 16},
    "queries were kept, too, of every attention head": {"queries": True},
    "three vectors were kept, queries among them": {"two": 3},
    "keys and values were counted twice": {"two": 4},
    "all keys of a layer together were as long as hidden_size": {"kv": 1, "dim": "hidden"},
    "there were as many KV heads as attention heads share one": {"kv": "groups"},
    "one layer fewer were counted": {"layers": -1},
    "a head had 128 numbers, whatever the config says": {"dim": 128},
    "a head had 64 numbers, whatever the config says": {"dim": 64},
    "kilobytes were counted, of 1,024 bytes": {"unit": 1024},
    "kilobytes were counted, of 1,000 bytes": {"unit": 1000},
}


def kv_formula(config, element_size, two=2, layers=None, kv=None, dim=None, size=None, queries=False, unit=1):
    """The bytes, with some mistakes in them."""
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    groups = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or hidden // heads
    dims = {"share": hidden // heads, "kv share": hidden // groups, "hidden": hidden, None: head_dim, 64: 64, 128: 128}
    count = {"heads": heads, "groups": heads // groups, None: groups, 1: 1}[kv]
    vectors = two * count + (heads if queries else 0)
    depth = {None: config["num_hidden_layers"], 1: 1, -1: config["num_hidden_layers"] - 1}[layers]
    return Fraction(depth * vectors * dims[dim] * (size or element_size), unit)


def wrong_kv_bytes(config, element_size):
    """What a wrong number of bytes means."""
    right = laid_out(config, element_size)

    def says(typed):
        got = typed.value
        if got is None:
            return "None came back: the number has to be returned."
        if isinstance(got, bool) or not isinstance(got, numbers.Real):
            return f"A {type(got).__name__} came back; a whole number of bytes is promised."
        if got == right:
            return f"The number is right, but it is of type {type(got).__name__}. Bytes are whole: an int is promised."
        found = [
            text for text, args in KV_MISTAKES.items() if kv_formula(config, element_size, **args) == Fraction(got)
        ]
        return would_be("That many it would be", found)

    return says


def check_kv_bytes(engine: Engine, check: Check, config, element_size, name="a model"):
    given = dict(config)
    check.step(f"kv_bytes_per_token({config}, {element_size})", says=kv_error(config))
    got = engine.get("labs:kv_bytes_per_token")(given, element_size)
    says = wrong_kv_bytes(config, element_size)
    what = f"bytes of one token of {name}, {element_size} bytes a number"
    check.equal(what, Typed(got), Typed(laid_out(config, element_size)), says=says)
    check.equal(
        "the config afterwards", given, config, says="The config belongs to the caller, and is another one now."
    )


def kv_error(config):
    """What an error in a call means."""
    names = ("num_key_value_heads", "head_dim")
    missing = [name for name in names if name not in config]
    empty = [name for name in names if name in config and config[name] is None]

    def says(error):
        if error == "KeyError" and missing:
            return f"There is no {' and no '.join(missing)} in this config; the docstring says what to go by instead."
        if error == "TypeError" and empty:
            return f"{' and '.join(empty)} is None in this config, which means the same as if it were missing."
        if error == "AttributeError":
            return "The config is a dict, as json.load makes it: its fields are read with [...] or with get."
        return None

    return says


def config_of(layers, heads, hidden, **others):
    return {"num_hidden_layers": layers, "num_attention_heads": heads, "hidden_size": hidden} | others


@case("ch02.kv_bytes_per_token")
def everything_is_there(engine, check):
    """Small models whose config says everything. Several attention heads share a KV head."""
    check_kv_bytes(engine, check, config_of(5, 12, 84, num_key_value_heads=3, head_dim=7), 2, "a small model")
    check_kv_bytes(engine, check, config_of(11, 8, 104, num_key_value_heads=2, head_dim=13), 4, "another")
    check_kv_bytes(engine, check, config_of(7, 6, 66, num_key_value_heads=6, head_dim=11), 1, "one without sharing")


@case("ch02.kv_bytes_per_token")
def heads_of_their_own_size(engine, check):
    """The heads are larger, or smaller, than hidden_size shared among them."""
    check_kv_bytes(engine, check, config_of(3, 4, 40, num_key_value_heads=2, head_dim=64), 2, "one with large heads")
    check_kv_bytes(engine, check, config_of(5, 9, 693, num_key_value_heads=3, head_dim=17), 3, "one with small heads")


@case("ch02.kv_bytes_per_token")
def no_head_dim(engine, check):
    """The config says nothing of head_dim; or there is the name, and None behind it."""
    check_kv_bytes(engine, check, config_of(7, 10, 130, num_key_value_heads=5), 2, "one without head_dim")
    config = config_of(5, 14, 266, num_key_value_heads=2, head_dim=None)
    check_kv_bytes(engine, check, config, 4, "one whose head_dim is None")


@case("ch02.kv_bytes_per_token")
def no_kv_heads(engine, check):
    """Before there was grouped-query attention, nobody wrote down the number of KV heads."""
    check_kv_bytes(engine, check, config_of(3, 6, 78, head_dim=11), 2, "one without num_key_value_heads")
    config = config_of(5, 7, 91, num_key_value_heads=None, head_dim=17)
    check_kv_bytes(engine, check, config, 2, "one whose num_key_value_heads is None")
    check_kv_bytes(engine, check, config_of(13, 5, 95), 4, "one with neither of the two")


@case("ch02.kv_bytes_per_token")
def one_kv_head(engine, check):
    """All attention heads share a single KV head."""
    check_kv_bytes(engine, check, config_of(7, 10, 190, num_key_value_heads=1, head_dim=23), 2, "one with one KV head")


@case("ch02.kv_bytes_per_token")
def real_models(engine, check):
    """Models that people serve, with what else their files say; the cache is in 16 bits, whatever the weights are."""
    for name, config in roofline_work.CONFIGS.items():
        more = {"vocab_size": 32000, "intermediate_size": 11008, "torch_dtype": "float32"}
        check_kv_bytes(engine, check, config | more, 2, name)


# step_seconds


def machine(scheduled, model, device):
    """Seconds, as a fraction: every byte and every operation of the step, one sequence after the other."""
    bytes_, operations = 0, 0
    for stored, computed in scheduled:
        for _ in range(stored):
            bytes_ += model.kv_bytes  # read
        for _ in range(computed):
            bytes_ += model.kv_bytes  # written
            operations += model.layer_parameters + model.layer_parameters
        operations += model.head_parameters + model.head_parameters
    if scheduled:
        bytes_ += sum(model.element_size * count for count in (model.layer_parameters, model.head_parameters))
    memory = Fraction(bytes_) / Fraction(device.bytes_per_second)
    return max(memory, Fraction(operations) / Fraction(device.flops_per_second))


# A mistake: what it would mean, and what it changes in the two totals. n is the number of sequences.
STEP_MISTAKES = {
    "the weights were read for each sequence": {"weights": "n"},
    "the weights were read for each computed token": {"weights": "computed"},
    "the weights were not read": {"weights": 0},
    "only the weights of the layers were read": {"head_bytes": 0},
    "only the weights of the head were read": {"layer_bytes": 0},
    "each weight took one byte": {"element": 1},
    "each weight took two bytes, whatever element_size says": {"element": 2},
    "each weight took four bytes, whatever element_size says": {"element": 4},
    "nothing of the cache were moved": {"kv": "none"},
    "the stored keys and values were not read": {"kv": "computed"},
    "the new keys and values were not written": {"kv": "stored"},
    "one token's keys and values were moved for each sequence": {"kv": "n"},
    "only the longest sequence's cache were moved": {"kv": "longest"},
    "only the first sequence's cache were moved": {"kv": "one first"},
    "all sequences moved as much as the first": {"kv": "first"},
    "all sequences moved as much as the longest": {"kv": "n longest"},
    "kv_bytes were numbers of element_size bytes each": {"kv_factor": "element"},
    "keys and values were two times kv_bytes": {"kv_factor": 2},
    "the new keys and values were moved twice, written and read": {"kv": "new twice"},
    "a multiplication and an addition were one operation": {"two": 1},
    "the head ran for each computed token": {"head": "computed"},
    "the head did not compute": {"head": "none"},
    "the head ran once for all sequences": {"head": "one"},
    "the layers computed one token for each sequence": {"layers": "n"},
    "the layers computed one token in all": {"layers": "one"},
    "stored tokens were computed again": {"layers": "all"},
    "the two times were added": {"join": "sum"},
    "the shorter of the two times counted": {"join": "min"},
    "only memory counted": {"join": "memory"},
    "only arithmetic counted": {"join": "arithmetic"},
    "the two times were averaged": {"join": "mean"},
    "the result were in milliseconds": {"unit": 1000},
    "the result were in microseconds": {"unit": 10**6},
    "the two speeds were exchanged": {"speeds": "swapped"},
    "bytes were counted as bits": {"bits": 8},
    "each sequence were a step of its own, and their times added": {"alone": "sum"},
    "each sequence were a step of its own, and the longest counted": {"alone": "max"},
}


def step_formula(scheduled, model, device, **m):
    """Seconds, as a fraction, with some mistakes in them."""
    if "alone" in m:
        join, rest = {"sum": sum, "max": max}[m["alone"]], {key: value for key, value in m.items() if key != "alone"}
        return join([step_formula([one], model, device, **rest) for one in scheduled] or [Fraction(0)])
    n, stored, computed = len(scheduled), sum(s for s, _ in scheduled), sum(c for _, c in scheduled)
    times = {"n": n, "computed": computed, 0: 0}[m["weights"]] if "weights" in m else 1
    counts = model.layer_parameters * m.get("layer_bytes", 1) + model.head_parameters * m.get("head_bytes", 1)
    weights = times * counts * m.get("element", model.element_size)
    sums = [s + c for s, c in scheduled]
    longest, first = max(sums, default=0), sums[0] if sums else 0
    tokens = {
        "none": 0,
        "computed": computed,
        "stored": stored,
        "n": n,
        "longest": longest,
        "first": n * first,
        "one first": first,
    }
    tokens |= {"n longest": n * longest, "new twice": stored + 2 * computed, "all": stored + computed}
    factor = {"element": model.element_size, 2: 2, 1: 1}[m.get("kv_factor", 1)]
    moved = (weights + tokens[m.get("kv", "all")] * model.kv_bytes * factor) * m.get("bits", 1)
    rows = {"computed": computed, "none": 0, "one": min(n, 1), "n": n, "all": stored + computed}
    layers = model.layer_parameters * rows[m.get("layers", "computed")]
    operations = m.get("two", 2) * (layers + model.head_parameters * rows[m.get("head", "n")])
    speeds = [Fraction(device.bytes_per_second), Fraction(device.flops_per_second)]
    memory, arithmetic = moved / speeds["speeds" in m], operations / speeds["speeds" not in m]
    joined = {"sum": memory + arithmetic, "min": min(memory, arithmetic), "memory": memory, "arithmetic": arithmetic}
    joined |= {"mean": (memory + arithmetic) / 2, "max": max(memory, arithmetic)}
    return joined[m.get("join", "max")] * m.get("unit", 1)


def rounded(value):
    """Nine digits: enough to tell mistakes apart, and the same for every order of the operations."""
    return float(f"{float(value):.9g}")


def mistakes_of(args, number):
    """The mistakes of the table that make this number; two together only where no single one does."""
    known = STEP_MISTAKES.items()
    found = [text for text, m in known if rounded(step_formula(*args, **m)) == number]
    if found:
        return found
    pairs = [
        (f"{one}, and {other}", {**a, **b})
        for (one, a), (other, b) in itertools.combinations(known, 2)
        if not a.keys() & b.keys()
    ]
    return [text for text, m in pairs if rounded(step_formula(*args, **m)) == number]


def wrong_step(args):
    """What a wrong time means."""
    right = machine(*args)

    def says(typed):
        got = typed.value
        if got is None:
            return "None came back: the seconds have to be returned."
        if isinstance(got, bool) or not isinstance(got, numbers.Real):
            return f"A {type(got).__name__} came back; seconds are promised, a float."
        if rounded(got) == rounded(right):
            return f"The number is right, but it is of type {type(got).__name__}; a float is promised."
        if not args[0]:
            return "A step without sequences does not run: no time, not even that of reading the weights."
        if got == math.floor(right):
            return "That is the right time, rounded down to whole seconds. It is a float, divided with /."
        found = mistakes_of(args, rounded(got))
        memory, arithmetic = step_formula(*args, join="memory"), step_formula(*args, join="arithmetic")
        return would_be("That long it would take", found) or (
            f"The memory needs {rounded(memory):g} s here and the arithmetic {rounded(arithmetic):g} s; "
            "the longer of the two is the time of the step."
        )

    return says


def step_error(error):
    if error == "AttributeError":
        return "A sequence is a pair of numbers here, stored and computed; the docstring names all other fields."
    if error == "ZeroDivisionError":
        return "Something is divided by 0; no speed of a device is 0, but a count of tokens may be."
    return None


def check_step(engine: Engine, check: Check, scheduled, model, device):
    given = list(scheduled)
    words = f"{shown(scheduled)}, {words_of(model)}, {words_of(device)}"
    check.step(f"step_seconds({words})", says=step_error if scheduled else empty_error)
    got = engine.get("labs:step_seconds")(given, model, device)
    number = rounded(got) if isinstance(got, float) else got
    says = wrong_step((scheduled, model, device))
    check.equal(f"seconds of the step {shown(scheduled)}, {words_of(model)}, {words_of(device)}",
                Typed(number), Typed(rounded(machine(scheduled, model, device))), says=says)  # fmt: skip
    check.equal("the list afterwards", given, list(scheduled), says="The list belongs to the caller, and is changed.")


def empty_error(error):
    return f"A step without sequences is a case of its own: 0.0 is promised, and {error} was raised."


def shown(scheduled):
    text = repr(scheduled)
    return text if len(text) <= 80 else f"[{scheduled[0]}, ... {len(scheduled)} sequences]"


def words_of(fields):
    return ", ".join(f"{name} {value:g}" for name, value in fields._asdict().items())


SMALL = roofline_work.Model(layer_parameters=1009, head_parameters=307, kv_bytes=23, element_size=3)
SLOW_MEMORY = roofline_work.Device(bytes_per_second=100.0, flops_per_second=1e5)
SLOW_ARITHMETIC = roofline_work.Device(bytes_per_second=1e5, flops_per_second=100.0)


@case("ch02.step_seconds")
def memory_is_slow(engine, check):
    """Decode steps on a device whose memory is slow: what counts are the bytes."""
    for scheduled in ([(40, 1), (7, 1), (130, 1)], [(11, 1), (29, 1)], [(500, 1)]):
        check_step(engine, check, scheduled, SMALL, SLOW_MEMORY)


@case("ch02.step_seconds")
def arithmetic_is_slow(engine, check):
    """The same on a device that computes slowly: what counts are the operations."""
    for scheduled in ([(40, 1), (7, 1), (130, 1)], [(0, 13), (0, 5), (16, 9)], [(500, 1)]):
        check_step(engine, check, scheduled, SMALL, SLOW_ARITHMETIC)


@case("ch02.step_seconds")
def prompts_are_read(engine, check):
    """Prefills: several tokens of a sequence in one step, some of them behind others that are stored."""
    for scheduled in ([(0, 17), (0, 6), (32, 5)], [(0, 1)], [(0, 64)]):
        check_step(engine, check, scheduled, SMALL, SLOW_MEMORY)
        check_step(engine, check, scheduled, SMALL, SLOW_ARITHMETIC)


@case("ch02.step_seconds")
def one_weight_is_so_many_bytes(engine, check):
    """Weights of one, two and four bytes. What a token of the cache takes does not follow from that."""
    for element_size in (1, 2, 4):
        model = SMALL._replace(element_size=element_size, kv_bytes=101)
        check_step(engine, check, [(40, 1), (7, 1), (130, 2)], model, SLOW_MEMORY)


@case("ch02.step_seconds")
def nobody_takes_part(engine, check):
    """A step without sequences: nothing runs."""
    check_step(engine, check, [], SMALL, SLOW_MEMORY)


@case("ch02.step_seconds")
def the_longer_of_the_two(engine, check):
    """Random steps, models and devices: now the memory is slower, now the arithmetic."""
    rng = random.Random(2)
    limits = set()
    for _ in range(14):
        model = roofline_work.Model(rng.randrange(100, 9000), rng.randrange(100, 5000), rng.randrange(3, 900),
                                    rng.choice([1, 2, 4]))  # fmt: skip
        device = roofline_work.Device(rng.uniform(50, 500), rng.uniform(500, 4000))
        is_prefill = rng.random() < 0.5
        scheduled = [
            (rng.choice([0, 16, 48]), rng.randrange(1, 30)) if is_prefill else (rng.randrange(1, 300), 1)
            for _ in range(rng.randrange(1, 7))
        ]
        limits.add(step_formula(scheduled, model, device, join="memory") == machine(scheduled, model, device))
        check_step(engine, check, scheduled, model, device)
    assert limits == {True, False}


@case("ch02.step_seconds")
def on_a_real_card(engine, check):
    """Qwen3-0.6B on an H100: one sequence, many, long ones, and a prompt."""
    model = roofline_work.Model(440_467_456, 155_582_464, 114_688)
    for scheduled in ([(500, 1)], [(500, 1)] * 64, [(8000, 1)] * 8, [(0, 2048)]):
        check_step(engine, check, scheduled, model, roofline_work.H100)


# predict_seconds: an open exercise


def checked_answers(engine: Engine, check: Check, slower=1):
    """The learner's function, with what it gives looked at; wrong kinds of answers become NaN and are noted."""
    function, wrong = engine.get("labs:predict_seconds"), []

    def predict(seen, num_seqs, context_len):
        given = [(n, length, slower * seconds) for n, length, seconds in seen]
        before = list(given)
        got = function(given, num_seqs, context_len)
        is_number = isinstance(got, numbers.Real) and not isinstance(got, bool) and math.isfinite(got)
        if given != before:
            wrong.append("the list of seen steps is changed afterwards")
        if not is_number or got <= 0:
            wrong.append(f"{num_seqs} sequences of {context_len} tokens: {got!r} came back")
            return 1e9
        return float(got) / slower

    def report():
        return check.equal("answers that are no positive number of seconds, or change the list", wrong[:1], [],
                           says="Seconds are asked for, a float above 0. The list belongs to the caller.")  # fmt: skip

    return SimpleNamespace(predict=predict, report=report)


def check_error(engine, check, name, splits, at_most, slower=1):
    answers = checked_answers(engine, check, slower)
    check.step(f"{name}: the steps that were seen, and those that are asked for")
    error = roofline_work.median_error(answers.predict, splits)
    nearest = roofline_work.median_error(roofline_work.nearest_seen, splits)
    if not answers.report():
        return
    check.measured(
        f"{name}: wrong by {100 * error:.1f} % (the median), the nearest step that was seen by {100 * nearest:.1f} %"
    )
    check.true(f"{name}: wrong by at most {100 * at_most:g} %", error <= at_most,
               says=(
                   "That is not good enough yet. What does a step pay for once, what for each sequence, and what "
                   "for each token in the cache?"
               ))  # fmt: skip


@case("ch02.predict_seconds")
def half_of_the_steps(engine, check):
    """Half of the recorded steps are seen, at random, and the other half is asked for; twenty times."""
    check_error(engine, check, "an H100", roofline_work.halves(roofline_work.recorded()[0]), 0.08)


@case("ch02.predict_seconds")
def another_gpu(engine, check):
    """The same on a GPU that takes three times as long for everything."""
    check_error(engine, check, "three times as slow", roofline_work.halves(roofline_work.recorded()[0], 8), 0.08, 3)


@case("ch02.predict_seconds")
def longer_than_seen(engine, check):
    """No context of more than 2,100 tokens was seen. How long does a step take with four times that?"""
    steps = roofline_work.recorded()[0]
    split = [step for step in steps if step[1] <= 2100], [step for step in steps if step[1] > 2100]
    check_error(engine, check, "longer than seen", [split], 0.2)
