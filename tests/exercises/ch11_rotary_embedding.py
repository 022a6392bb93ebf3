"""Grader of chapter 11. What is right is computed number by number, in Python's own floats."""

import math
import random
from itertools import pairwise

import torch

from exercises.kit import rope_work
from exercises.kit.grading import case
from exercises.kit.probes import check_tensor

AXES = ("token", "head", "feature")


def numbers(*shape, seed=0):
    """A tensor of numbers with two digits, so that a learner can follow them."""
    rng = random.Random(seed)
    count = math.prod(shape)
    return torch.tensor([rng.choice([-1, 1]) * rng.randrange(20, 200) / 100 for _ in range(count)]).view(shape)


def rotated(x, angles, turn=None, pair=None, put=None):
    """Every pair rotated by itself.

    Args:
        x: [num_tokens, num_heads, head_dim].
        angles: angles[t][i], of pair i of token t.
        turn: (first, second, cos, sin) -> the new pair; a rotation by default.
        pair: (i, half) -> the two features of pair i; those of a half's distance by default.
        put: the same for where the result goes; `pair` by default.
    """
    turn = turn or (lambda a, b, c, s: (a * c - b * s, b * c + a * s))
    pair = pair or (lambda i, half: (i, i + half))
    put = put or pair
    result, half = x.double().clone(), x.shape[-1] // 2
    for t, token in enumerate(x.double().tolist()):
        for h, features in enumerate(token):
            for i in range(half):
                first, second = (features[k] for k in pair(i, half))
                both = turn(first, second, math.cos(angles[t][i]), math.sin(angles[t][i]))
                for k, number in zip(put(i, half), both, strict=True):
                    result[t, h, k] = number
    return result


def neighbors(i, half):
    return 2 * i, 2 * i + 1


def halves(i, half):
    return i, i + half


def opposite(i, half):
    return i + half, i


def by_feature(x, angles, partner, angle_of):
    """x * cos + other * sin, as it is written with cosines and sines for all features.

    Args:
        partner: (f, half) -> the other feature of f, and the sign that it gets.
        angle_of: (f, half) -> the pair whose angle f gets.
    """
    result, half = x.double().clone(), x.shape[-1] // 2
    for t, token in enumerate(x.double().tolist()):
        for h, features in enumerate(token):
            for f in range(2 * half):
                (other, sign), angle = partner(f, half), angles[t][angle_of(f, half)]
                result[t, h, f] = features[f] * math.cos(angle) + sign * features[other] * math.sin(angle)
    return result


def across(f, half):
    return (f + half, -1) if f < half else (f - half, 1)


def beside(f, half):
    return (f + 1, -1) if f % 2 == 0 else (f - 1, 1)


# What known mistakes do with a pair.
TURNS = {
    "It is turned clockwise, by the opposite angle: the minus belongs to first * cos - second * sin.":
        lambda a, b, c, s: (a * c + b * s, b * c - a * s),
    "There is a plus in both formulas. A rotation has one minus: first * cos - second * sin.":
        lambda a, b, c, s: (a * c + b * s, b * c + a * s),
    "There is a minus in both formulas. A rotation has one of them: the second is second * cos + first * sin.":
        lambda a, b, c, s: (a * c - b * s, b * c - a * s),
    "cos and sin have changed places: at position 0 (cos = 1, sin = 0) a pair has to stay as it is.":
        lambda a, b, c, s: (a * s - b * c, b * s + a * c),
    "The second feature was computed from the new first one. Both need the old pair, so keep it until both are there.":
        lambda a, b, c, s: (a * c - b * s, b * c + (a * c - b * s) * s),
    "The first feature was computed from the new second one. Both need the old pair, so keep it until both are there.":
        lambda a, b, c, s: (a * c - (b * c + a * s) * s, b * c + a * s),
    "The second feature is first * cos + second * sin here: the two have changed places. It is second * cos + first * "
    "sin.": lambda a, b, c, s: (a * c - b * s, a * c + b * s),
    "The first feature is second * cos - first * sin here: the two have changed places. It is first * cos - second * "
    "sin.": lambda a, b, c, s: (b * c - a * s, b * c + a * s),
    "The second feature of each pair has the opposite sign: it is second * cos + first * sin.":
        lambda a, b, c, s: (a * c - b * s, -b * c - a * s),
    "The first feature of each pair has the opposite sign: it is first * cos - second * sin.":
        lambda a, b, c, s: (b * s - a * c, b * c + a * s),
    "Only the first half is rotated; the second is as it was.": lambda a, b, c, s: (a * c - b * s, b),
    "Only the second half is rotated; the first is as it was.": lambda a, b, c, s: (a, b * c + a * s),
    "Every feature is multiplied by its cosine, and the sines are missing: that turns nothing.":
        lambda a, b, c, s: (a * c, b * c),
    "Every feature is multiplied by its sine, and the cosines are missing.": lambda a, b, c, s: (a * s, b * s),
    "The first half has only cosines, the second only sines: each of the two needs both.":
        lambda a, b, c, s: (a * c, b * s),
    "In the sine's part each feature was multiplied by itself, not by the other one of its pair.":
        lambda a, b, c, s: (a * c - a * s, b * c + b * s),
    "In the sine's part each feature was multiplied by itself, not by the other one of its pair, with a plus.":
        lambda a, b, c, s: (a * c + a * s, b * c + b * s),
    "first * sin + second * cos stands in the first half and first * cos - second * sin in the second: they have "
    "changed places.": lambda a, b, c, s: (b * c + a * s, a * c - b * s),
    "Every pair is turned twice as far: it was rotated two times.":
        lambda a, b, c, s: (a * (c * c - s * s) - 2 * b * c * s, b * (c * c - s * s) + 2 * a * c * s),
    "The sine's part alone came back, or was put where the whole should be.": lambda a, b, c, s: (-b * s, a * s),
}  # fmt: skip


def known_mistakes(x, angles):
    """What each known mistake gives for these inputs."""
    found = {
        "Neighboring features were taken for a pair, x[0] with x[1]. A pair is x[i] with x[i + head_dim / 2].":
            rotated(x, angles, pair=neighbors),
        "The pairs are right and rotated, but the result lies in neighboring features; its place is that of the pair.":
            rotated(x, angles, put=neighbors),
        "Neighboring features were taken for a pair, and the result was put into halves.":
            rotated(x, angles, pair=neighbors, put=halves),
        "The second half was taken for the first of each pair, and put there.": rotated(x, angles, pair=opposite),
    }  # fmt: skip
    found |= {text: rotated(x, angles, turn) for text, turn in TURNS.items()}
    both = "Neighboring features were taken for a pair, and it is turned by the opposite angle."
    clockwise = next(iter(TURNS.values()))
    found[both] = rotated(x, angles, clockwise, pair=neighbors)
    if len(angles) > 1:
        found["Every token is rotated by the angles of token 0."] = rotated(x, [angles[0]] * len(angles))
        found["Every token is rotated by the angles of the last one."] = rotated(x, [angles[-1]] * len(angles))
    if x.shape[1] > 1:
        only = x.double().clone()
        only[:, 0] = rotated(x, angles)[:, 0]
        found["Only the first head is rotated; all heads of a token turn alike."] = only
    if len(angles[0]) > 1:
        found[
            "Each cosine and sine was repeated beside itself, as for neighbors; here both halves get the same ones."
        ] = by_feature(x, angles, across, lambda f, half: f // 2)
        found["The features were paired with their neighbors, and got the cosines and sines of pairs in halves."] = (
            by_feature(x, angles, beside, lambda f, half: f % half)
        )
        found["Every pair is rotated by the angle of pair 0."] = rotated(x, [[a[0]] * len(a) for a in angles])
        found["The angles belong to the pairs in the opposite order."] = rotated(x, [a[::-1] for a in angles])
    num_tokens, num_heads, d = x.shape
    found[OTHER_DIMENSION] = torch.zeros(num_tokens, 2 * num_heads, d // 2)
    found[ONE_MORE] = torch.zeros(num_tokens, num_tokens, num_heads, d)
    return {text: tensor.float() for text, tensor in found.items()}


OTHER_DIMENSION = (
    "Features are the last dimension: the halves were put together along another one, or the dimensions were exchanged."
)
ONE_MORE = "cos and sin have a dimension of size 1 for the heads already; with one more, every token meets all others."
RAISED = {
    "RuntimeError": "The shapes do not fit together: x is [num_tokens, num_heads, head_dim], cos and sin are "
    "[num_tokens, 1, head_dim / 2]. Halves of the last dimension of x fit to them as they are.",
    "IndexError": "x has three dimensions, of which the last has the features: x.shape[-1] is head_dim.",
    "NameError": "A name is used that does not exist here.",
    "TypeError": "Something was called with other arguments than it takes; a dimension is an int, // makes one.",
    "UnboundLocalError": "A variable is used before it has a value.",
    "ValueError": "Something was unpacked into another number of parts than it has. chunk(2, dim=-1) gives two halves "
    "of the last dimension.",
}
NOT_CONTIGUOUS = (
    "Here x is a part of a larger tensor, and its rows do not lie side by side in memory. view() needs them to; "
    "reshape() and chunk() do not."
)
IN_PLACE = "x has changed: it was written into it. x stays as it is; the result is a tensor of its own."


def ask_rotation(engine, check, x, angles, text, tolerance=1e-4, dtype=None):
    """Rotate, and compare with pairs rotated one by one."""
    table = torch.tensor(angles, dtype=torch.float64).unsqueeze(1)
    before, cos, sin = x.clone(), table.cos().float(), table.sin().float()
    raised = RAISED if x.is_contiguous() else RAISED | {"RuntimeError": NOT_CONTIGUOUS}
    check.step(f"{text}: x of shape {list(x.shape)}, {str(x.dtype).removeprefix('torch.')}", raised)
    got = engine.get("layers.rotary_embedding:apply_rotary_emb")(x, cos, sin)
    ok = check_tensor(check, "what comes back", got, rotated(before, angles).float(), AXES,
                      known_mistakes(before, angles), {"x": before.float()}, dtype or x.dtype, tolerance)  # fmt: skip
    check.true("x is as it was", torch.equal(x, before), IN_PLACE)
    return got if ok else None


@case("ch11.apply_rotary_emb")
def one_pair(engine, check):
    """One token, one head, one pair: the arrow to (3, 1), turned by half a radian, by 90 degrees, and not at all."""
    x = torch.tensor([[[3.0, 1.0]]])
    ask_rotation(engine, check, x, [[0.5]], "by 0.5")
    ask_rotation(engine, check, x, [[math.pi / 2]], "by 90 degrees, to (-1, 3)")
    ask_rotation(engine, check, x, [[0.0]], "by 0, which changes nothing")


@case("ch11.apply_rotary_emb")
def two_pairs(engine, check):
    """One token, one head, four features: two pairs, each with an angle of its own."""
    ask_rotation(engine, check, numbers(1, 1, 4), [[0.5, 1.2]], "angles 0.5 and 1.2")


@case("ch11.apply_rotary_emb")
def several_heads(engine, check):
    """Three tokens, two heads, eight features. All heads of a token turn by the same angles."""
    angles = [[0.3 + t + 0.7 * i - 0.2 * t * i for i in range(4)] for t in range(3)]
    ask_rotation(engine, check, numbers(3, 2, 8, seed=1), angles, "angles differ by token and by pair")


@case("ch11.apply_rotary_emb")
def odd_number_of_pairs(engine, check):
    """Six features are three pairs; and as many tokens as heads, and as features."""
    angles = [[0.4 * t + 0.9 * i + 0.1 for i in range(3)] for t in range(6)]
    ask_rotation(engine, check, numbers(6, 6, 6, seed=2), angles, "six tokens, six heads, six features")


@case("ch11.apply_rotary_emb")
def lengths_stay(engine, check):
    """A rotation changes no arrow's length."""
    rng = random.Random(3)
    angles = [[rng.uniform(-9, 9) for _ in range(5)] for _ in range(4)]
    x = numbers(4, 3, 10, seed=3)
    got = ask_rotation(engine, check, x, angles, "any angles")
    if got is not None:
        lengths = [round(float(part.norm()), 3) for part in (x, got)]
        check.equal("length of all of it, before and after", lengths[1], lengths[0])


@case("ch11.apply_rotary_emb")
def part_of_a_larger_tensor(engine, check):
    """The queries of a step are a part of a larger tensor, with the keys and values behind them in memory."""
    rng = random.Random(4)
    qkv = numbers(5, 7, 6, seed=4)
    angles = [[rng.uniform(0, 6) for _ in range(3)] for _ in range(5)]
    ask_rotation(engine, check, qkv[:, :3], angles, "three of seven heads")
    check.true("the rest is as it was", torch.equal(qkv, numbers(5, 7, 6, seed=4)), IN_PLACE)


HALF_PRECISION = (
    "It was computed in half precision, in the dtype of x: where two products nearly cancel, nothing right is left. "
    "x is brought to float32 before, and the result back to the dtype of x."
)


@case("ch11.apply_rotary_emb")
def computed_in_float32(engine, check):
    """Queries in bfloat16. Both features are equal and the angle is close to 45 degrees: two products nearly cancel."""
    x = torch.tensor([[[1.5, 0.75, 1.5, 0.75], [-1.25, 3.0, -1.25, 3.0]]]).expand(3, 2, 4).bfloat16()
    angles = [[math.pi / 4 + 0.011 * (t + 1), math.pi / 4 - 0.007 * (t + 1)] for t in range(3)]
    got = ask_rotation(engine, check, x, angles, "bfloat16", tolerance=0.01)
    if got is not None:
        right = rotated(x, angles)[..., :2].float()
        says = {HALF_PRECISION: got[..., :2].float()}
        check_tensor(check, "the first half, where products cancel", got[..., :2].float(), right, AXES, says,
                     tolerance=0.006)  # fmt: skip


@case("ch11.apply_rotary_emb")
def other_dtypes(engine, check):
    """float16 comes back as float16, float32 as float32."""
    for dtype, tolerance in ((torch.float16, 2e-3), (torch.float32, 1e-4)):
        angles = [[0.2 + t, 1.1 * t] for t in range(3)]
        ask_rotation(engine, check, numbers(3, 2, 4, seed=5).to(dtype), angles, "small", tolerance)


@case("ch11.apply_rotary_emb")
def heads_of_a_model(engine, check):
    """Random numbers in the shapes of a model: seven tokens, four heads of 64 features."""
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(7, 4, 64, generator=generator)
    angles = [[t * 10_000 ** (-i / 32) for i in range(32)] for t in (0, 1, 2, 900, 3, 4, 1500)]
    ask_rotation(engine, check, x, angles, "positions 0, 1, 2, 900, 3, 4, 1500")


# rope_table

TABLE_AXES = ("position", "middle", "column")


def table(head_dim, max_position, speed, angle=None, columns=None, dtype=torch.float32):
    """A table, number by number.

    Args:
        speed: of pair i.
        angle: (position, speed) -> angle, their product by default.
        columns: (cosines, sines) -> a row; one behind the other by default.
    """
    angle = angle or (lambda p, s: p * s)
    columns = columns or (lambda cos, sin: cos + sin)
    rows = []
    for p in range(max_position):
        angles = [angle(p, speed(i)) for i in range(head_dim // 2)]
        rows.append([columns([math.cos(a) for a in angles], [math.sin(a) for a in angles])])
    return torch.tensor(rows, dtype=torch.float64).to(dtype)


def mixed(cos, sin):
    return [number for both in zip(cos, sin, strict=True) for number in both]


def table_mistakes(d, n, base):
    """What each known mistake gives."""

    def speed(i):
        return base ** (-2 * i / d)

    exponents = {
        "The exponent of pair i is -2 i / head_dim, and -i / head_dim was taken: pairs slow down half as much.":
            lambda i: base ** (-i / d),
        "The exponent of pair i is -2 i / head_dim, and twice as much was taken: pairs slow down too fast.":
            lambda i: base ** (-4 * i / d),
        "The exponent counts from 2 on, so pair 0 is turned like pair 1: its exponent is 0, and its speed 1.":
            lambda i: base ** (-2 * (i + 1) / d),
        "The exponent is not divided by head_dim.": lambda i: base ** (-2 * i),
        "The minus in the exponent is missing: pairs turn faster and faster.": lambda i: base ** (2 * i / d),
        "base is missing: e was taken in its place.": lambda i: math.exp(-2 * i / d),
        "base is multiplied by the exponent; it has to be raised to it.": lambda i: 1 / (base * 2 * i / d or math.inf),
        "All pairs turn by one radian a position; pair i turns by base ** (-2 i / head_dim).": lambda i: 1.0,
        "The pairs are in the opposite order: pair 0 is the fastest, with one radian a position.":
            lambda i: speed(d // 2 - 1 - i),
        "The slowest pair got a speed of exactly 1 / base: the steps are 2 / head_dim, as for one pair more.":
            lambda i: base ** (-i / max(1, d // 2 - 1)),
        "The speeds go down in even steps; it is their exponents that do.": lambda i: 1 - 2 * i / d,
        "10,000 is built in; the base is an argument.": lambda i: 10_000 ** (-2 * i / d),
        "1,000,000 is built in; the base is an argument.": lambda i: 1e6 ** (-2 * i / d),
    }  # fmt: skip
    found = {text: table(d, n, wrong) for text, wrong in exponents.items()}
    angles = {
        "The positions begin at 1; the first is 0, and its angles are 0.": lambda p, s: (p + 1) * s,
        "The angles have the opposite sign.": lambda p, s: -p * s,
        "The angles were taken for degrees; they are radians.": lambda p, s: math.radians(p * s),
        "The angles were multiplied by 2 pi: the speed is in radians, not in turns.": lambda p, s: math.tau * p * s,
        "The angles were divided by 2 pi: the speed is in radians, not in turns.": lambda p, s: p * s / math.tau,
        "The position is divided by the speed; it is multiplied.": lambda p, s: p / s,
        "Position and speed were added; the angle is their product.": lambda p, s: p + s,
        "The angle does not grow with the position: it is the same in every row.": lambda p, s: s,
        "Positions were divided by max_position.": lambda p, s: p * s / n,
    }
    found |= {text: table(d, n, speed, wrong) for text, wrong in angles.items()}
    columns = {
        "The sines come first; the cosines do.": lambda cos, sin: sin + cos,
        "Cosines and sines alternate; the cosines of all pairs come first, then all sines.": mixed,
        "Sines and cosines alternate; the cosines of all pairs come first, then all sines.":
            lambda cos, sin: mixed(sin, cos),
        "The cosines are there twice, and the sines are missing.": lambda cos, sin: cos + cos,
        "The sines are there twice, and the cosines are missing.": lambda cos, sin: sin + sin,
        "Half of the columns are missing: the cosines of all pairs come first, then all sines.": lambda cos, sin: cos,
        "There are too many columns: each pair has one cosine and one sine, which makes head_dim of them.":
            lambda cos, sin: cos + cos + sin + sin,
    }  # fmt: skip
    found |= {text: table(d, n, speed, columns=wrong) for text, wrong in columns.items()}
    found["The angles themselves came back, twice; cosines and sines of them are asked for."] = torch.tensor(
        [[[p * speed(i % (d // 2)) for i in range(d)]] for p in range(n)]
    )
    one_less = table(d, n + 1, speed)
    found |= {"There is one position too many: they are 0 to max_position - 1.": one_less}
    if n > 1:
        found |= {"The last position is missing: they are 0 to max_position - 1.": one_less[: n - 1]}
        found |= {"The first row, of position 0, is missing, and there is one too many at the end.": one_less[1:]}
    for dims, text in (
        ((d // 2, 1, 2 * n), "Positions and pairs have changed places: there is a row for each position."),
        ((n, d), "The dimension of size 1 in the middle is missing; with it, a row fits all heads of a token."),
        ((1, n, d), "The dimension of size 1 stands in front; it belongs in the middle, where the heads are."),
        ((n, d, 1), "The dimension of size 1 stands at the end; it belongs in the middle, where the heads are."),
    ):
        found[text] = torch.zeros(dims)
    return found


TABLE_RAISED = {
    "RuntimeError": "The shapes do not fit together. The angles are [max_position, head_dim / 2]: every position with "
    "every speed, which torch.outer gives.",
    "TypeError": "Something was called with other arguments: torch.cos wants a tensor, math.cos a number.",
    "NameError": "A name is used that does not exist here.",
    "ZeroDivisionError": "Something was divided by 0: the first exponent and the first position are 0.",
    "IndexError": "An index or a dimension does not exist.",
    "OverflowError": "A number became too large: pairs get slower, so the exponent has a minus.",
    "ValueError": "Something was unpacked into another number of parts than it has, or math.cos got a tensor with "
    "more than one number.",
}


def ask_table(engine, check, d, n, base, tolerance=1e-4, mistakes=None):
    """Make a table, and compare it with one made number by number."""
    check.step(f"head_dim {d}, max_position {n}, base {base:,.0f}", TABLE_RAISED)
    got = engine.get("layers.rotary_embedding:rope_table")(d, n, base)
    if list(getattr(got, "shape", [])) == [n, 1, 2 * d]:
        says = "There are too many columns: each pair has one cosine and one sine, which makes head_dim of them."
        check.true("no column is there twice", not torch.equal(got[..., : d // 2], got[..., d // 2 : d]), says)
    right = table(d, n, lambda i: base ** (-2 * i / d))
    check_tensor(check, "the table", got, right, TABLE_AXES, mistakes or table_mistakes(d, n, base),
                 dtype=torch.float32, tolerance=tolerance)  # fmt: skip


@case("ch11.rope_table")
def small_table(engine, check):
    """Heads of six features: three pairs. Five positions, base 70."""
    ask_table(engine, check, 6, 5, 70.0)


@case("ch11.rope_table")
def one_pair_only(engine, check):
    """Heads of two features have one pair, which turns by one radian a position."""
    ask_table(engine, check, 2, 4, 10_000.0)


@case("ch11.rope_table")
def two_pairs_only(engine, check):
    """Four features, seven positions, base 50."""
    ask_table(engine, check, 4, 7, 50.0)


@case("ch11.rope_table")
def one_position(engine, check):
    """A table of position 0 alone: all cosines are 1, all sines 0."""
    ask_table(engine, check, 8, 1, 1000.0)


@case("ch11.rope_table")
def another_base(engine, check):
    """Two tables of the same size, one after the other, with different bases."""
    ask_table(engine, check, 6, 5, 70.0)
    kept = "This is the table of base 70, which was asked for before: another base makes another table."
    mistakes = {kept: table(6, 5, lambda i: 70.0 ** (-i / 3))} | table_mistakes(6, 5, 900.0)
    ask_table(engine, check, 6, 5, 900.0, mistakes=mistakes)


@case("ch11.rope_table")
def while_a_model_is_made(engine, check):
    """torch's default dtype is bfloat16, as it is while an engine makes a bfloat16 model. 300 positions."""
    torch.set_default_dtype(torch.bfloat16)
    try:
        check.step("rope_table(8, 300, 500.0), the default dtype is bfloat16")
        got = engine.get("layers.rotary_embedding:rope_table")(8, 300, 500.0)
    finally:
        torch.set_default_dtype(torch.float32)
    right = table(8, 300, lambda i: 500.0 ** (-2 * i / 8))
    says = (
        "Something was computed in torch's default dtype, which is bfloat16 here. A division of whole numbers makes a "
        "tensor of it, and so do torch.tensor(0.5) and torch.arange(5.0): say dtype=torch.float32 where numbers begin."
    )
    has_form = isinstance(got, torch.Tensor) and got.dtype == torch.float32 and got.shape == right.shape
    is_right = has_form and torch.allclose(got.double(), right.double(), atol=1e-3)
    if isinstance(got, torch.Tensor) and got.dtype != torch.float32 and torch.equal(got, right.to(got.dtype)):
        says = "The table is right, and was then brought to bfloat16. It is float32, whatever torch's default dtype is."
    check.true("the table is right, and float32", is_right, says)


@case("ch11.rope_table")
def as_many_positions_as_features(engine, check):
    """Eight positions, eight features."""
    ask_table(engine, check, 8, 8, 500.0)


@case("ch11.rope_table")
def bundled_model(engine, check):
    """The table of qwen3-tiny: heads of 64, base 10,000, of which the first 300 positions."""
    check.step("head_dim 64, max_position 300, base 10,000: positions 0 to 2 and 255 to 261", TABLE_RAISED)
    got = engine.get("layers.rotary_embedding:rope_table")(64, 300, 1e4)
    if not check.equal("its shape", list(getattr(got, "shape", [])), [300, 1, 64]):
        return
    rows = torch.tensor([0, 1, 2, *range(255, 262)])
    speeds = [1e4 ** (-i / 32) for i in range(32)]
    mistakes = {text: rounded(rows, speeds, kind, *which).float() for text, kind, which in ROUNDED}
    right = rounded(rows, speeds, torch.float32, False, False).float()
    check_tensor(check, "these rows", got[rows], right, TABLE_AXES, mistakes, tolerance=2e-3)


def rounded(positions, speeds, kind, of_positions, of_speeds):
    """The table with positions or speeds rounded to half precision."""
    first = positions.to(kind).double() if of_positions else positions.double()
    second = torch.tensor(speeds, dtype=torch.float64)
    angles = torch.outer(first, second.to(kind).double() if of_speeds else second)
    return torch.cat((angles.cos(), angles.sin()), -1).unsqueeze(1)


ROUNDED = [
    ("The positions are numbers of bfloat16, in which 257 is 256: not every position has its own row.",
     torch.bfloat16, (True, False)),
    ("The speeds were rounded to bfloat16: after some positions the angles are wrong.", torch.bfloat16, (False, True)),
    ("Positions and speeds were rounded to bfloat16.", torch.bfloat16, (True, True)),
    ("The speeds were rounded to float16: after some positions the angles are wrong.", torch.float16, (False, True)),
]  # fmt: skip

FAR = (
    "Near the beginning the table is right, far from it it is not: a small error grows with the position. Half "
    "precision makes one, since it has not even all numbers from 2,049 on; so does a pi of a few digits."
)


@case("ch11.rope_table")
def far_positions(engine, check):
    """Heads of 128, base 1,000,000, as Qwen3 has them: positions up to 30,000."""
    rows = [0, 1, 2, 255, 257, 1000, 2049, 4001, 9999, 20_001, 29_999]
    check.step(f"head_dim 128, max_position 30000, base 1,000,000: positions {rows}", TABLE_RAISED)
    got = engine.get("layers.rotary_embedding:rope_table")(128, 30_000, 1e6)
    right = [[p * 1e6 ** (-i / 64) for i in range(64)] for p in rows]
    shape = list(got.shape) if isinstance(got, torch.Tensor) else type(got).__name__
    if check.equal("its shape", shape, [30_000, 1, 128]):
        expected = torch.tensor([[math.cos(a) for a in row] + [math.sin(a) for a in row] for row in right])
        wrong = (got[rows, 0].double() - expected.double()).abs().max(-1).values > 0.012
        far = [p for p, is_wrong in zip(rows, wrong.tolist(), strict=True) if is_wrong]
        check.equal("positions with a wrong number", far, [], lambda found: FAR if found and min(found) > 2 else None)


# forward


def counted_from_jumps(positions):
    """Positions of somebody who begins at 0 wherever they do not go on by one."""
    found = list(positions[:1])
    for before, position in pairwise(positions):
        found.append(found[-1] + 1 if position == before + 1 else 0)
    return found


def by_rows(x, rows):
    """Every pair rotated; rows[t] has the cosines and the sines of token t's pairs, whatever they are."""
    first, second = x.float().chunk(2, -1)
    cos, sin = (torch.tensor([row[n] for row in rows]).unsqueeze(1) for n in (0, 1))
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class Bench:
    """A rotary embedding whose table the grader has made."""

    def __init__(self, engine, check, head_dim=4, num_positions=50, base=100.0):
        self.check, self.head_dim, self.base, self.num_positions = check, head_dim, base, num_positions
        self.rotary = engine.get("layers.rotary_embedding:RotaryEmbedding")(head_dim, num_positions, base)
        self.rotary.cos_sin_cache = table(head_dim, num_positions, lambda i: base ** (-2 * i / head_dim))
        check.step(f"head_dim {head_dim}, base {base:,.0f}, a table of {num_positions} positions")

    def right(self, x, positions):
        return self.turned(x, [float(p) for p in positions]).float()

    def turned(self, x, positions):
        speeds = [self.base ** (-2 * i / self.head_dim) for i in range(self.head_dim // 2)]
        return rotated(x, [[p * speed for speed in speeds] for p in positions])

    def mistakes(self, x, other, positions, is_exchanged, earlier):
        """What known mistakes give; `other` is the keys if x is the queries, and the other way round."""
        n, first = len(positions), positions[0]
        others = {
            "The tokens were counted through the step, 0, 1, 2, ...; where a token is in its text, positions says.":
                list(range(n)),
            "The tokens were counted on from the first position; but the next token may be one of another text.":
                [first + t for t in range(n)],
            "Every token has the position of the first one.": [first] * n,
            "Every token has the position of the last one.": [positions[-1]] * n,
            "Each position is one too large.": [p + 1 for p in positions],
            "Each position is one too small.": [(p - 1) % self.num_positions for p in positions],
            "Each position is counted from the first one of the step.":
                [(p - first) % self.num_positions for p in positions],
            "They are turned by the opposite angle.": [-p for p in positions],
            "They are rotated twice.": [2 * p for p in positions],
            "The positions are in the opposite order.": list(positions)[::-1],
            "The positions were sorted.": sorted(positions),
            "Each position is counted from the smallest one of the step.": [p - min(positions) for p in positions],
            "Where positions do not go on by one, the next text was counted from 0. It may begin anywhere.":
                counted_from_jumps(positions),
        }  # fmt: skip
        found = {
            text: self.turned(x, wrong).float()
            for text, wrong in others.items()
            if wrong != list(positions) and any(wrong)
        }
        speeds = [self.base ** (-2 * i / self.head_dim) for i in range(self.head_dim // 2)]
        angles = [[p * speed for speed in speeds] for p in positions]
        exchanged = "cos and sin have changed places: the table has the cosines first."
        found[exchanged] = rotated(x, angles, lambda a, b, c, s: (a * s - b * c, b * s + a * c)).float()
        rows = [[math.cos(a) for a in row] + [math.sin(a) for a in row] for row in angles]
        found["Cosines and sines were taken from a row in turn. First come all cosines, then all sines."] = by_rows(
            x, [(row[0::2], row[1::2]) for row in rows]
        )
        found[ONE_MORE] = torch.zeros(n, n, *x.shape[1:])
        found |= {(EXCHANGED if is_exchanged else REPEATED): other.float()}
        if earlier:
            found = {KEPT: self.turned(x, earlier).float()} | found
        return found


EXCHANGED = "It has as many heads as the other one of the two: queries come back first, then keys."
TWICE = "These are the rotated {other} once more, in the place of the {name}."
REPEATED = "It has as many heads as the other one of the two. Both keep their own: that heads share keys comes later."
KEPT = "The positions are those of the step before, which had as many tokens. Nothing is kept between steps."
FORWARD_RAISED = {
    "RuntimeError": "The shapes do not fit together. The table is [num_positions, 1, head_dim], and one row of it is "
    "wanted for each token, of which cosines and sines are one half each of the last dimension.",
    "IndexError": "A row of the table was asked for that it does not have; positions are indices of its rows.",
    "AttributeError": "The table is self.cos_sin_cache.",
    "ValueError": "Something was unpacked into another number of parts than it has.",
    "TypeError": "Something was called with other arguments: apply_rotary_emb(x, cos, sin).",
    "NameError": "A name is used that does not exist here; the table is self.cos_sin_cache.",
    "UnboundLocalError": "A variable is used before it has a value.",
}


def ask_forward(bench, positions, text, heads=(3, 2), dtype=torch.float32, tolerance=1e-4, seed=0, earlier=None):
    """Rotate queries and keys, and compare both; `earlier` are the positions of the step before."""
    check, d = bench.check, bench.head_dim
    q, k = (numbers(len(positions), count, d, seed=seed + count).to(dtype) for count in heads)
    before = q.clone(), k.clone()
    check.step(f"{text}: positions {positions}, {heads[0]} heads of queries, {heads[1]} of keys", FORWARD_RAISED)
    result = bench.rotary.forward(torch.tensor(positions), q, k)
    pair = isinstance(result, tuple | list) and len(result) == 2
    if not check.true("two things come back, queries and keys", pair,
                      "Nothing came back: a return is missing." if result is None else
                      "What comes back is not the queries and the keys, two tensors."):  # fmt: skip
        return
    is_exchanged = [getattr(got, "shape", None) for got in result] == [k.shape, q.shape]
    for name, got, x, other in zip(("queries", "keys"), result, before, before[::-1], strict=True):
        is_clear = len(set(positions)) > 1 or positions[0]
        mistakes = bench.mistakes(x, other, positions, is_exchanged, earlier) if is_clear else {}
        again = bench.right(other, positions)
        can_tell = isinstance(got, torch.Tensor) and got.shape == again.shape != x.shape and not is_exchanged
        if can_tell and torch.allclose(got.float(), again, atol=1e-2):
            mistakes = {TWICE.format(name=name, other="queries" if name == "keys" else "keys"): again}
        inputs = {f"the {name}": x.float()} if any(positions) else {}
        check_tensor(check, f"the {name}", got, bench.right(x, positions), AXES, mistakes, inputs, dtype, tolerance)
    check.true("q and k are as they were", torch.equal(q, before[0]) and torch.equal(k, before[1]),
               "The queries or keys that came in have changed; they stay as they are.")  # fmt: skip


@case("ch11.forward")
def a_prompt(engine, check):
    """A prompt of five tokens, from its beginning."""
    ask_forward(Bench(engine, check), [0, 1, 2, 3, 4], "a prompt")


@case("ch11.forward")
def a_decode_step(engine, check):
    """Four sequences of different lengths, one token of each; two are equally long."""
    ask_forward(Bench(engine, check), [41, 3, 12, 3], "a decode")


@case("ch11.forward")
def a_later_part_of_a_prompt(engine, check):
    """The first seven tokens are cached, or were computed in the step before."""
    ask_forward(Bench(engine, check), [7, 8, 9, 10], "a part of a prompt")


@case("ch11.forward")
def several_prompts(engine, check):
    """Two prompts behind each other, the second of which has a cached beginning."""
    ask_forward(Bench(engine, check), [0, 1, 2, 5, 6], "two prompts")


@case("ch11.forward")
def one_token(engine, check):
    """A single sequence in decode, at the last position of the table; and at position 0."""
    ask_forward(Bench(engine, check), [49], "the last position")
    ask_forward(Bench(engine, check), [0], "position 0")


@case("ch11.forward")
def step_after_step(engine, check):
    """Three steps of a decode with the same layer: as many tokens in each, and each one position further."""
    bench, earlier = Bench(engine, check), None
    for positions in ([6, 20, 3], [7, 21, 4], [8, 22, 5]):
        ask_forward(bench, positions, "a decode", earlier=earlier)
        earlier = positions


@case("ch11.forward")
def other_shapes(engine, check):
    """As many tokens as heads; six features; as many queries as keys."""
    ask_forward(Bench(engine, check, head_dim=6), [9, 4, 30, 2], "four heads", heads=(4, 4))
    ask_forward(Bench(engine, check, head_dim=2), [5, 1, 8], "one pair", heads=(5, 1))


@case("ch11.forward")
def queries_and_keys_in_bfloat16(engine, check):
    """As on a GPU: queries and keys in bfloat16, the table in float32."""
    ask_forward(Bench(engine, check), [3, 17, 8], "bfloat16", dtype=torch.bfloat16, tolerance=0.01)


@case("ch11.forward")
def the_table_stays_float32(engine, check):
    """bfloat16, equal features, and angles close to 45 degrees: the numbers of the table are needed as they are."""
    bench = Bench(engine, check)
    angles = torch.full((50, 1, 2), math.pi / 4, dtype=torch.float64) + 0.004 * torch.arange(1, 51).view(-1, 1, 1)
    bench.rotary.cos_sin_cache = torch.cat((angles.cos(), angles.sin()), -1).float()
    x = torch.tensor([1.5, 0.75, 1.5, 0.75]).bfloat16().expand(3, 2, 4).clone()
    check.step("positions [4, 1, 2]", FORWARD_RAISED)
    result = bench.rotary.forward(torch.tensor([4, 1, 2]), x, x.clone())
    right = rotated(x, [[float(angles[p, 0, 0])] * 2 for p in (4, 1, 2)])[..., :2].float()
    for name, got in zip(("queries", "keys"), result, strict=True):
        half = got[..., :2].float()
        says = {
            "Cosines and sines were rounded to half precision; apply_rotary_emb wants them as they are, float32.": half
        }
        check_tensor(check, f"the first half of the {name}", half, right, AXES, says, tolerance=0.006)


# long_frequencies

LONG_RAISED = {
    "RuntimeError": "Shapes do not fit, or a tensor was made a bool: [head_dim / 2] frequencies are asked for.",
    "TypeError": "Something was called with other arguments: torch.log wants a tensor, math.log a number.",
    "ZeroDivisionError": "Something was divided by 0; head_dim may be 2, and then there is one pair.",
    "ValueError": "math.log or math.sqrt got a number that is not positive.",
    "NameError": "A name is used that does not exist here.",
}


def ask_frequencies(engine, check, head_dim, base, trained, wanted):
    """Choose, and see whether the promises are kept; returns them, or None if they are not."""
    check.step(f"head_dim {head_dim}, base {base:,.0f}, trained {trained:,}, wanted {wanted:,}", LONG_RAISED)
    got = engine.get("labs:long_frequencies")(head_dim, base, trained, wanted)
    ok = check.true("a tensor comes back", isinstance(got, torch.Tensor),
                    "Nothing came back: a return is missing." if got is None else
                    f"A {type(got).__name__} came back, and a tensor was promised.")  # fmt: skip
    ok = ok and check.equal("its shape", list(got.shape), [head_dim // 2], "There is one frequency for each pair.")
    ok = ok and check.true("its numbers are floats", got.is_floating_point(), "The frequencies are floats.")
    ok = ok and check.true("all are finite", got.isfinite().all(), "There is nan or inf among the frequencies.")
    ok = ok and check.true("none is negative", (got >= 0).all(), "A negative frequency turns the other way.")
    return got.float() if ok else None


@case("ch11.long_frequencies")
def nothing_to_stretch(engine, check):
    """A text that is no longer than those of the training: nothing changes."""
    for head_dim, base, trained, wanted in ((64, 1e4, 2048, 2048), (64, 1e4, 2048, 500), (128, 1e6, 40_960, 40_960)):
        got = ask_frequencies(engine, check, head_dim, base, trained, wanted)
        if got is not None:
            near = torch.allclose(got, rope_work.plain(head_dim, base), rtol=1e-3, atol=0)
            check.true("the plain frequencies", near,
                       "wanted is not more than trained, so the frequencies stay those of the training.")  # fmt: skip


@case("ch11.long_frequencies")
def other_models(engine, check):
    """Other sizes of heads, bases and lengths: there is always a frequency for each pair."""
    for head_dim, base, trained, wanted in (
        (128, 1e6, 40_960, 131_072), (64, 1e4, 2048, 2049), (32, 5e5, 8192, 1_000_000), (8, 1e4, 128, 256),
        (4, 100.0, 16, 17), (64, 1e4, 2048, 4096),
    ):  # fmt: skip
        ask_frequencies(engine, check, head_dim, base, trained, wanted)


def ask_loss(check, losses, num_tokens):
    """The mean of some losses, and how it compares."""
    loss, bar = float(losses[: num_tokens - 1].mean()), rope_work.BARS[num_tokens]
    about = (
        f"it is {rope_work.PLAIN[num_tokens]:.2f} with the frequencies of the training, and "
        f"{rope_work.INTERPOLATED[num_tokens]:.2f} if all are divided by the same factor"
    )
    check.measured(f"loss of {num_tokens:,} tokens: {loss:.3f}; at most {bar:.2f} is asked for")
    check.true(
        f"a loss of at most {bar:.2f}",
        loss <= bar,
        f"The loss is {loss:.3f}, and at most {bar:.2f} is asked for; {about}.",
    )


@case("ch11.long_frequencies")
def twice_as_long(engine, check):
    """qwen3-tiny reads 4,096 tokens of stories, twice as many as in its training; the first 2,048 count, too."""
    frequencies = ask_frequencies(engine, check, rope_work.HEAD_DIM, rope_work.BASE, rope_work.TRAINED, 4096)
    if frequencies is not None:
        losses = rope_work.losses_of(frequencies, 4096)
        ask_loss(check, losses, 4096)
        ask_loss(check, losses, 2048)


@case("ch11.long_frequencies")
def three_times_as_long(engine, check):
    """qwen3-tiny reads 6,144 tokens of stories, three times as many as in its training."""
    frequencies = ask_frequencies(engine, check, rope_work.HEAD_DIM, rope_work.BASE, rope_work.TRAINED, 6144)
    if frequencies is not None:
        ask_loss(check, rope_work.losses_of(frequencies, 6144), 6144)
