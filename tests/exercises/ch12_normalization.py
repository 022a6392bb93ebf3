"""Grader of chapter 12. What is right is computed number by number, in Python's own floats."""

import math
import random

import torch

from exercises.kit import norm_work
from exercises.kit.grading import case
from exercises.kit.probes import check_tensor


def numbers(*shape, seed=0, scale=1.0):
    """A tensor of numbers with two digits, so that a learner can follow them."""
    rng = random.Random(seed)
    count = math.prod(shape)
    values = [rng.choice([-1, 1, 1]) * rng.randrange(20, 300) / 100 * scale for _ in range(count)]
    return torch.tensor(values, dtype=torch.float64).view(shape).float()


def weights(size, seed=9):
    """Numbers around 1, none of which is 1."""
    rng = random.Random(seed)
    return torch.tensor([rng.choice([0.4, 0.6, 0.75, 1.25, 1.5, 1.75, 2.25, -0.5]) for _ in range(size)])


def root(value):
    return math.sqrt(value) if value >= 0 else math.nan


def over(value, other):
    """A quotient as tensors have it."""
    if other == 0:
        return math.nan if value == 0 or math.isnan(value) else math.copysign(math.inf, value)
    return value / other


def mean_square(row):
    return sum(v * v for v in row) / len(row)


def mean(row):
    return sum(row) / len(row)


def by_rows(x, function):
    """A tensor of the same shape, each row of which a function has made from the row as a list."""
    rows = x.double().reshape(-1, x.shape[-1]).tolist()
    return torch.tensor([function(row) for row in rows], dtype=torch.float64).reshape(x.shape)


def scaled(row, eps):
    """The row with a root mean square of one."""
    factor = root(mean_square(row) + eps)
    return [over(v, factor) for v in row]


def normalized(x, weight, eps):
    """What is right, before any rounding."""
    w = weight.double().tolist()
    return by_rows(x, lambda row: [v * f for v, f in zip(scaled(row, eps), w, strict=True)])


def divided_by(size):
    """A mistake that divides a row by another number than it should.

    Args:
        size: (row, eps) -> that number.
    """
    return lambda row, w, eps: of_size(row, w, size(row, eps))


def of_size(row, w, size):
    return [over(v, size) * f for v, f in zip(row, w, strict=True)]


def minus(row, w, size):
    return [(v - size) * f for v, f in zip(row, w, strict=True)]


def softmax(row, w):
    shares = [math.exp(v - max(row)) for v in row]
    return of_size(shares, w, sum(shares))


def centered(row):
    middle = mean(row)
    return [v - middle for v in row]


# What known mistakes do with a row; w is the weight.
ROWS = {
    "The weight is missing: each feature is multiplied by its own number of self.weight.":
        lambda row, w, eps: scaled(row, eps),
    "The weight was added; each feature is multiplied by it.":
        lambda row, w, eps: [v + f for v, f in zip(scaled(row, eps), w, strict=True)],
    "It was divided by the weight; each feature is multiplied by it.":
        lambda row, w, eps: [over(v, f) for v, f in zip(scaled(row, eps), w, strict=True)],
    "It was multiplied by 1 + weight (as in Gemma); here it is the weight itself.":
        lambda row, w, eps: [v * (1 + f) for v, f in zip(scaled(row, eps), w, strict=True)],
    "The weight is in it twice.":
        lambda row, w, eps: [v * f * f for v, f in zip(scaled(row, eps), w, strict=True)],
    "The weight was multiplied before the mean square was taken; it comes last.":
        lambda row, w, eps: scaled([v * f for v, f in zip(row, w, strict=True)], eps),
    "Every feature was multiplied by the first number of the weight.":
        lambda row, w, eps: [v * w[0] for v in scaled(row, eps)],
    "The weight alone was multiplied; the row was not scaled.":
        lambda row, w, eps: [v * f for v, f in zip(row, w, strict=True)],
    "It was divided by the mean of the row; the mean of the squares is needed, and its root.":
        divided_by(lambda row, eps: mean(row) + eps),
    "It was divided by the root of the mean of the row: the squares are missing.":
        divided_by(lambda row, eps: root(mean(row) + eps)),
    "It was divided by the mean of the absolute values; it is the root of the mean of the squares.":
        divided_by(lambda row, eps: mean([abs(v) for v in row]) + eps),
    "It was divided by the mean of the absolute values; it is the root of the mean of the squares. ":
        divided_by(lambda row, eps: mean([abs(v) for v in row])),
    "It was divided by the root of the mean of the absolute values: the squares are missing.":
        divided_by(lambda row, eps: root(mean([abs(v) for v in row]) + eps)),
    "First the mean was taken and then its square. It is the other way round: the squares first, then their mean.":
        divided_by(lambda row, eps: root(mean(row) ** 2 + eps)),
    "The squares were added up and not divided by their number: it is their mean that is needed.":
        divided_by(lambda row, eps: root(sum(v * v for v in row) + eps)),
    "The squares were added up and not divided by their number: it is their mean that is needed. ":
        divided_by(lambda row, eps: root(sum(v * v for v in row)) + eps),
    "The sum of the squares was divided by one less than their number.":
        divided_by(lambda row, eps: root(over(sum(v * v for v in row), len(row) - 1) + eps)),
    "The root is missing: it was divided by the mean square itself.":
        divided_by(lambda row, eps: mean_square(row) + eps),
    "The root was taken twice.": divided_by(lambda row, eps: root(root(mean_square(row) + eps))),
    "It was multiplied by the root mean square; it has to be divided by it.":
        divided_by(lambda row, eps: over(1.0, root(mean_square(row) + eps))),
    "It was multiplied by the mean square; it has to be divided by its root.":
        divided_by(lambda row, eps: over(1.0, mean_square(row) + eps)),
    "The mean was subtracted before squaring, as in a variance; here the squares are those of the numbers as they are.":
        divided_by(lambda row, eps: root(mean_square(centered(row)) + eps)),
    "A variance was taken: the mean was subtracted, and it was divided by one less than their number (torch's var).":
        divided_by(lambda row, eps: root(over(sum(v * v for v in centered(row)), len(row) - 1) + eps)),
    "It was divided by a standard deviation (torch's std), which subtracts the mean; the squares are those of the "
    "numbers as they are.":
        divided_by(lambda row, eps: root(over(sum(v * v for v in centered(row)), len(row) - 1)) + eps),
    "The mean was subtracted from the row: that is LayerNorm. RMSNorm subtracts nothing.":
        lambda row, w, eps: [v * f for v, f in zip(scaled(centered(row), eps), w, strict=True)],
    "The mean was subtracted from the row, though the mean square is that of the row as it was.":
        lambda row, w, eps: of_size(centered(row), w, root(mean_square(row) + eps)),
    "LayerNorm came out, with a variance that is divided by one less than their number.":
        lambda row, w, eps: of_size(
            centered(row), w, root(over(sum(u * u for u in centered(row)), len(row) - 1) + eps)),
    "It was divided by the largest absolute value of the row.":
        divided_by(lambda row, eps: max(abs(v) for v in row) + eps),
    "It was divided by the largest number of the row.": divided_by(lambda row, eps: max(row) + eps),
    "The signs are gone: squares are taken for the mean only.":
        lambda row, w, eps: [abs(v) * f for v, f in zip(scaled(row, eps), w, strict=True)],
    "The squares were multiplied by the factor, and not the numbers.":
        lambda row, w, eps: of_size([v * v for v in row], w, root(mean_square(row) + eps)),
    "The factor of the row came back, times the weight; the row itself is missing.":
        lambda row, w, eps: of_size([1.0] * len(row), w, root(mean_square(row) + eps)),
    "The root mean square was subtracted; the row is divided by it.":
        lambda row, w, eps: minus(row, w, root(mean_square(row) + eps)),
    "It was divided by the root of the hidden size, too.":
        divided_by(lambda row, eps: root(mean_square(row) + eps) * math.sqrt(len(row))),
    "A softmax was taken of the row.":
        lambda row, w, eps: softmax(row, w),
    "256 is built in as the number of features; it is x.shape[-1].":
        divided_by(lambda row, eps: root(sum(v * v for v in row) / 256 + eps)),
    "64 is built in as the number of features; it is x.shape[-1].":
        divided_by(lambda row, eps: root(sum(v * v for v in row) / 64 + eps)),
    # eps
    "eps was added outside the root; it is added to the mean square.":
        divided_by(lambda row, eps: root(mean_square(row)) + eps),
    "eps is missing: it is added to the mean square.": divided_by(lambda row, eps: root(mean_square(row))),
    "eps was added to the finished factor; it is added to the mean square.":
        divided_by(lambda row, eps: over(1.0, over(1.0, root(mean_square(row))) + eps)),
    "The mean square was raised to eps where it is smaller; eps is added to it.":
        divided_by(lambda row, eps: root(max(mean_square(row), eps))),
    "The root was raised to eps where it is smaller; eps is added to the mean square, inside the root.":
        divided_by(lambda row, eps: max(root(mean_square(row)), eps)),
    "eps was subtracted; it is added.": divided_by(lambda row, eps: root(mean_square(row) - eps)),
    "eps was squared; it is added as it is.": divided_by(lambda row, eps: root(mean_square(row) + eps * eps)),
    "eps was added to the numbers before they were squared; it is added to the mean square.":
        divided_by(lambda row, eps: root(mean([(v + eps) ** 2 for v in row]))),
    "eps was added to the numbers of the row; it is added to the mean square.":
        lambda row, w, eps: [v * f for v, f in zip(scaled([u + eps for u in row], 0.0), w, strict=True)],
    "eps was multiplied; it is added to the mean square.": divided_by(lambda row, eps: root(mean_square(row) * eps)),
    "1e-6 is built in; eps is self.eps.": divided_by(lambda row, eps: root(mean_square(row) + 1e-6)),
    "1e-5 is built in; eps is self.eps.": divided_by(lambda row, eps: root(mean_square(row) + 1e-5)),
    "1e-8 is built in; eps is self.eps.": divided_by(lambda row, eps: root(mean_square(row) + 1e-8)),
    "torch's own eps was taken, 1.2e-7; it is self.eps.":
        divided_by(lambda row, eps: root(mean_square(row) + 2**-23)),
    "eps was added after the division; it is added to the mean square.":
        lambda row, w, eps: [(v + eps) * f for v, f in zip(scaled(row, 0.0), w, strict=True)],
}  # fmt: skip


def norm_mistakes(x, weight, eps):
    """What each known mistake gives for these rows."""
    w = weight.double().tolist()
    found = {text: by_rows(x, lambda row, wrong=wrong: wrong(row, w, eps)) for text, wrong in ROWS.items()}
    wide, weight = x.double(), weight.double()

    def with_squares(squares):
        return wide / (squares + eps).sqrt() * weight

    squares = wide.square()
    if x.ndim > 1 and x.numel():
        text = "The mean was taken over the wrong dimension: over the rows, for each feature. It is that of each row."
        found[text] = with_squares(squares.mean(0, keepdim=True))
        text = "One mean was taken over all numbers; each row has its own."
        found[text] = with_squares(squares.mean())
        first = squares.reshape(-1, x.shape[-1])[0].mean()
        found["All rows were divided by the root mean square of the first one."] = with_squares(first)
    if x.ndim == 3:
        text = "One mean was taken over all heads of a token; each head has its own."
        found[text] = with_squares(squares.mean((1, 2), keepdim=True))
        text = "The mean was taken over the heads of a token; it is that over the features of each head."
        found[text] = with_squares(squares.mean(1, keepdim=True))
    if x.ndim > 1 and x.shape[-1] == x.shape[-2]:
        text = (
            "The factors lie along the features: keepdim=True leaves a dimension of 1, so that each row gets its own."
        )
        found[text] = with_squares(squares.mean(-1).unsqueeze(-2))
    if x.ndim == 2 and x.shape[0] == x.shape[1]:
        found["The weight went along the rows; it has a number for each feature."] = (
            wide / (squares.mean(-1, keepdim=True) + eps).sqrt() * weight.unsqueeze(1))  # fmt: skip
    found["Only the factor of each row came back, or its mean square; the rows are missing."] = torch.zeros(
        *x.shape[:-1], 1)  # fmt: skip
    return found


RAISED = {
    "RuntimeError": "The shapes do not fit together. The mean of each row is wanted, over the last dimension; with "
    "keepdim=True it stays there with size 1, and fits the row again. Or a dtype does not fit: mean wants floats.",
    "IndexError": "A dimension was named that x does not have: rows may have any number of dimensions before them. "
    "The features are dim=-1.",
    "TypeError": "Something was called with other arguments than it takes; math.sqrt wants a number, torch.sqrt a "
    "tensor.",
    "NameError": "A name is used that does not exist here: eps and weight are self.eps and self.weight.",
    "AttributeError": "Something is asked for an attribute that it does not have: eps and weight are self.eps and "
    "self.weight.",
    "UnboundLocalError": "A variable is used before it has a value.",
    "ValueError": "math.sqrt got a negative number, or something was unpacked into another number of parts than it "
    "has, or a tensor with several numbers was taken for one.",
    "ZeroDivisionError": "It was divided by 0: eps keeps that from happening.",
}
X_CHANGED = "x has changed: it was written into. If x is float32 already, x.float() is x itself, and what is done in "
X_CHANGED += "place is done to the residual stream."


def same(got, other, tolerance):
    """Whether two tensors agree; nan agrees with nan."""
    got, other = got.double(), other.double()
    finite = other[other.isfinite()]
    allowed = tolerance * (float(finite.abs().max()) if finite.numel() else 1.0)
    return got.shape == other.shape and torch.allclose(got, other, rtol=0, atol=allowed, equal_nan=True)


def is_right(got, expected, tolerance):
    """Whether no mistake has to be looked for."""
    return isinstance(got, torch.Tensor) and same(got, expected, tolerance)


def has_no_nan(check, got, expected, mistakes, tolerance):
    """A tensor with nan is told from others by where the nan is."""
    if not isinstance(got, torch.Tensor) or got.shape != expected.shape or not got.isnan().any():
        return True
    says = next((text for text, other in mistakes.items() if same(got, other, tolerance)), "")
    says = says or "There is nan among the numbers: of a root of a negative number, of 0 / 0, or of inf / inf."
    return check.equal("nan among the numbers", int(got.isnan().sum()), 0, says)


AXES = {1: ("feature",), 2: ("row", "feature"), 3: ("token", "head", "feature")}


def make_norm(engine, x, weight, eps):
    norm = engine.get("layers.layernorm:RMSNorm")(x.shape[-1], eps)
    norm.weight.data = weight.to(x.dtype)
    return norm


def told(x):
    """A tensor in the text of a step."""
    return f"{rounded(x.tolist())}" if x.numel() <= 12 and x.dtype == torch.float32 else f"of shape {list(x.shape)}"


def rounded(value):
    """Numbers in lists, without the digits that float32 does not have."""
    return [rounded(part) for part in value] if isinstance(value, list) else float(f"{value:.6g}")


def ask_norm(engine, check, x, weight, eps, tolerance=1e-4):
    """Normalize, and compare with rows normalized one by one."""
    norm, before = make_norm(engine, x, weight, eps), x.clone()
    kind = str(x.dtype).removeprefix("torch.")
    check.step(f"x {told(x)}, {kind}; weight {told(weight)}, eps {eps:g}", RAISED)
    got = norm.normalize(x)
    right = normalized(before, weight.to(x.dtype), eps)
    mistakes = {} if is_right(got, right, tolerance) else norm_mistakes(before, weight, eps)
    check.true("the weight is as it was", torch.equal(norm.weight.data, weight.to(x.dtype)),
               "self.weight has changed: it was written into. The next step needs it as it was.")  # fmt: skip
    if mistakes and is_right(got, right, 0.015):
        mistakes |= {HALF_SOMEWHERE: got}
    if has_no_nan(check, got, right, mistakes, tolerance):
        check_tensor(check, "what comes back", got, right.float(), AXES[x.ndim], mistakes, {"x": before.float()},
                     x.dtype, tolerance)  # fmt: skip
    check.true("x is as it was", torch.equal(x, before), X_CHANGED)
    return got


@case("ch12.normalize")
def one_row(engine, check):
    """One row of five features."""
    weight = torch.tensor([1.5, 0.5, 2.0, -1.0, 0.75])
    ask_norm(engine, check, torch.tensor([[-1.0, 2.0, -2.5, 0.5, -5.0]]), weight, 1e-6)


@case("ch12.normalize")
def rows_of_different_sizes(engine, check):
    """Four rows, the last a thousand times as large as the first. Each is scaled by itself."""
    x = numbers(4, 6, seed=1) * torch.tensor([[0.1], [1.0], [10.0], [100.0]])
    ask_norm(engine, check, x, weights(6), 1e-6)


@case("ch12.normalize")
def eps_counts(engine, check):
    """eps is 0.01, and the rows are so small that it shows where and how it is added; then with eps = 0.5."""
    sizes = torch.tensor([[0.001], [0.05], [0.3]])
    ask_norm(engine, check, numbers(3, 4, seed=2) * sizes, weights(4), 0.01)
    ask_norm(engine, check, numbers(3, 4, seed=2, scale=0.4), weights(4), 0.5)


@case("ch12.normalize")
def tiny_numbers(engine, check):
    """Rows so small that eps = 1e-6 counts; then the same with eps = 1e-5."""
    for eps in (1e-6, 1e-5):
        ask_norm(engine, check, numbers(3, 5, seed=3, scale=0.001), weights(5), eps)


@case("ch12.normalize")
def a_row_of_zeros(engine, check):
    """A row of zeros among others stays zeros."""
    x = numbers(3, 4, seed=4)
    x[1] = 0.0
    ask_norm(engine, check, x, weights(4), 1e-6)


@case("ch12.normalize")
def heads(engine, check):
    """Queries: three tokens with two heads of four features. Each head of each token is a row."""
    ask_norm(engine, check, numbers(3, 2, 4, seed=5) * torch.tensor([[[1.0], [9.0]]]), weights(4), 1e-6)


@case("ch12.normalize")
def as_many_rows_as_features(engine, check):
    """Four rows of four features; and four tokens with four heads of four features."""
    x = numbers(4, 4, seed=6) * torch.tensor([[0.5], [1.0], [4.0], [30.0]])
    ask_norm(engine, check, x, weights(4, seed=2), 1e-6)
    ask_norm(engine, check, numbers(4, 4, 4, seed=7), weights(4, seed=3), 1e-6)


@case("ch12.normalize")
def other_shapes(engine, check):
    """No row at all; one feature; a single row without a dimension before it; seven features."""
    for shape in ((0, 5), (3, 1), (6,), (2, 7)):
        x = numbers(*shape, seed=8)
        ask_norm(engine, check, x, weights(shape[-1]), 1e-6)


@case("ch12.normalize")
def part_of_a_larger_tensor(engine, check):
    """The queries are a part of a larger tensor, in which keys and values lie behind them."""
    qkv = numbers(3, 5, 4, seed=9)
    ask_norm(engine, check, qkv[:, :2], weights(4), 1e-6)
    check.true("the rest is as it was", torch.equal(qkv, numbers(3, 5, 4, seed=9)), X_CHANGED)


@case("ch12.normalize")
def rows_of_a_model(engine, check):
    """Random numbers in the shape of qwen3-tiny: seven rows of 256, with one large number among them."""
    x = torch.randn(7, 256, generator=torch.Generator().manual_seed(10))
    x[3, 70] = 800.0
    ask_norm(engine, check, x, weights(256), 1e-6)


HALF_SOMEWHERE = (
    "The numbers are right to two or three digits only: something was rounded to half precision on the way."
)
HALF_SOMEWHERE += " All is float32 up to the scaled row; that is rounded to the dtype of x, and then comes the weight."


def in_half(x, weight, eps):
    """What roundings at other places give, in torch; x and weight are half precision."""
    kind, wide = x.dtype, x.float()
    factor = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    of_half = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    squares = torch.rsqrt(x.square().float().mean(-1, keepdim=True) + eps)
    right = (wide * factor).to(kind)
    all_half = "It was computed in the dtype of x: in half precision the squares and their mean lose digits, or are "
    all_half += "too large. x is brought to float32 first."
    squared = "The squares were taken in half precision, before the numbers were brought to float32."
    rounded = "The factor of the row was rounded to half precision before it was multiplied; the product is in float32."
    once = "The weight was multiplied in float32, and the result rounded once. The scaled row is rounded to the dtype "
    once += "of x first, and then multiplied by the weight, as the training did."
    narrow = x.square().mean(-1, keepdim=True).float()
    return {
        all_half: x * of_half * weight,
        f"{all_half} ": x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight,
        f"{all_half}  ": weight * (x * of_half),
        f"{all_half}   ": (wide * of_half.float()).to(kind) * weight,
        f"{all_half}    ": (wide * torch.rsqrt(narrow + eps)).to(kind) * weight,
        f"{all_half}     ": (x * torch.rsqrt(narrow + eps).to(kind)) * weight,
        squared: (wide * squares).to(kind) * weight,
        f"{squared} ": x * squares.to(kind) * weight,
        rounded: x * factor.to(kind) * weight,
        f"{rounded} ": x / (wide.square().mean(-1, keepdim=True) + eps).sqrt().to(kind) * weight,
        once: (wide * factor * weight.float()).to(kind),
        f"{once} ": (x.float() * of_half.float() * weight.float()).to(kind),
        f"{once}  ": (wide * (factor * weight.float())).to(kind),
        "The weight is missing: each feature is multiplied by its own number of self.weight.": right,
    }


def is_safe(exact, kind):
    """Where a number is not so close to the middle of two half-precision numbers that it may be rounded either way."""
    digits = 8 if kind == torch.bfloat16 else 11
    mantissa, _ = torch.frexp(exact)
    part = (mantissa.abs() * 2**digits) % 1
    return (part - 0.5).abs() > 0.02


def ask_half(engine, check, x, weight, eps=1e-6):
    """Normalize in half precision, and compare to the last digit, but for numbers that may be rounded either way."""
    norm, before, kind = make_norm(engine, x, weight, eps), x.clone(), x.dtype
    name = str(kind).removeprefix("torch.")
    check.step(f"x of shape {list(x.shape)}, {name}; weight in {name}, eps {eps:g}", RAISED)
    got = norm.normalize(x)
    weight = weight.to(kind)
    first = by_rows(before, lambda row: scaled(row, eps))
    second = first.to(kind).double() * weight.double()
    right, safe = second.to(kind), is_safe(first, kind) & is_safe(second, kind)
    mistakes = in_half(before, weight, eps)
    if not (isinstance(got, torch.Tensor) and got.shape == right.shape and got.dtype == kind):
        check_tensor(check, "what comes back", got, right.float(), AXES[x.ndim], {}, {"x": before.float()}, kind)
    elif has_no_nan(check, got, right, mistakes, 1e-4):
        seen = torch.where(safe, got.float(), right.float())
        wrong = {text: torch.where(safe, other.float(), right.float()) for text, other in mistakes.items()}
        if is_right(seen, right, 0.03):
            wrong |= {HALF_SOMEWHERE: seen}
        wrong |= {} if torch.equal(seen, right.float()) else norm_mistakes(before, weight, eps)
        tolerance = 1e-4 if kind == torch.bfloat16 else 1e-5
        check_tensor(check, "what comes back, to the last digit", seen, right.float(), AXES[x.ndim], wrong,
                     {"x": torch.where(safe, before.float(), right.float())}, tolerance=tolerance)  # fmt: skip
    check.true("x is as it was", torch.equal(x, before), X_CHANGED)


@case("ch12.normalize")
def in_bfloat16(engine, check):
    """As on a GPU: rows and weight in bfloat16. What is rounded when, shows in the last digit."""
    rng = random.Random(11)
    x = torch.tensor([[rng.uniform(1, 2) * rng.choice([-1, 1]) for _ in range(12)] for _ in range(6)]).bfloat16()
    ask_half(engine, check, x, torch.tensor([rng.uniform(1, 2) for _ in range(12)]))


@case("ch12.normalize")
def in_float16(engine, check):
    """Rows in float16, of numbers around 1; then around 500, whose squares are too large for float16."""
    rng = random.Random(12)
    for scale in (1.0, 400.0):
        x = torch.tensor([[rng.uniform(1, 2) * scale for _ in range(8)] for _ in range(3)]).half()
        ask_half(engine, check, x, torch.tensor([rng.uniform(1, 2) for _ in range(8)]))


# forward, with the residual

FORWARD_RAISED = RAISED | {
    "RuntimeError": "Whether there is a residual is asked with `residual is None`: a tensor with several numbers is "
    "neither true nor false. Or shapes do not fit: x and residual have the same one.",
    "TypeError": "Something was called with other arguments than it takes, or None was added: without a residual, x "
    "alone is normalized, by self.normalize(x).",
    "AttributeError": "Something is asked for what it does not have. Without a residual, residual is None.",
    "NameError": "A name is used that does not exist here; normalize is self.normalize.",
    "RecursionError": "forward calls itself; it is self.normalize that does the work.",
}


def sums(x, residual, weight, eps):
    """What known mistakes give for the normalized rows, and for the sum."""
    x, residual, total = x.double(), residual.double(), x.double() + residual.double()

    def norm(rows):
        return normalized(rows, weight, eps)

    first = {
        "x was normalized without the residual; it is their sum that is normalized.": norm(x),
        "The residual was normalized without x; it is their sum that is normalized.": norm(residual),
        "The sum came back as it is, where the normalized rows belong.": total,
        "x and the residual were each normalized and then added; the sum is normalized.": norm(x) + norm(residual),
        "x was normalized and then added to the residual; first they are added, and the sum is normalized.":
            norm(x) + residual,
        "The residual was normalized and then added to x; first they are added, and the sum is normalized.":
            norm(residual) + x,
        "x was normalized before it was added to the residual; the sum of the two is normalized, once.":
            norm(residual + norm(x)),
        "The residual was normalized before x was added; the sum of the two is normalized, once.":
            norm(norm(residual) + x),
        "The sum was normalized twice.": norm(norm(total)),
        "x was added twice before the sum was normalized.": norm(total + x),
        "The residual was added twice before the sum was normalized.": norm(total + residual),
        "x was subtracted; it is added to the residual.": norm(residual - x),
        "The residual was subtracted; they are added.": norm(x - residual),
        "They were multiplied; they are added.": norm(x * residual),
        "The mean of the two was normalized; it is their sum that is normalized.": norm(total / 2),
        "The normalized sum was added to the stream: what comes back first are the normalized rows alone.":
            norm(total) + total,
        "The normalized sum was added to the residual: what comes back first are the normalized rows alone.":
            norm(total) + residual,
        "The normalized sum was added to x: what comes back first are the normalized rows alone.": norm(total) + x,
    }  # fmt: skip
    second = {
        "The residual came back as it was; the sum comes back, with x in it: the next layer adds to that.": residual,
        "x came back in place of the sum; the next layer adds to the sum.": x,
        "The normalized rows came back twice; the second thing is the sum before it was normalized.": norm(total),
        "The normalized x came back in place of the sum.": norm(x),
        "x was added twice to what comes back second.": total + x,
        "The residual was added twice to what comes back second.": total + residual,
        "x was subtracted; it is added to the residual.": residual - x,
        "The residual was subtracted; they are added.": x - residual,
        "The normalized rows were added to the sum; it comes back as it was before the norm.": total + norm(total),
        "The normalized rows were added to the residual; what comes back second is x + residual.":
            residual + norm(total),
        "What comes back second is x plus the normalized rows; it is x + residual.": x + norm(total),
        "The normalized x was added to the residual; what comes back second is x + residual.": residual + norm(x),
        "The mean of the two came back; it is their sum.": total / 2,
    }  # fmt: skip
    return first, second


CHANGED = (
    "{} has changed: it was written into, as += does. The sum is a tensor of its own; who holds {} still needs it."
)


ALL_ZERO = (
    "All normalized rows are 0: squares of numbers above 255 are inf in float16. self.normalize brings the rows to "
)
ALL_ZERO += "float32 before it squares; so does every norm that takes its place."


def ask_forward(engine, check, x, residual, weight, eps=1e-6):
    """Normalize a sum, and compare both that comes back."""
    norm, before, kind = make_norm(engine, x, weight, eps), (x.clone(), residual.clone()), x.dtype
    name = str(kind).removeprefix("torch.")
    check.step(f"with a residual: x {told(x)}, residual {told(residual)}, {name}", FORWARD_RAISED)
    result = norm.forward(x, residual)
    is_pair = isinstance(result, tuple | list) and len(result) == 2
    says = "What comes back is not a tuple of two: with a residual, the normalized rows and the sum."
    if result is None:
        says = "Nothing came back: a return is missing."
    elif isinstance(result, torch.Tensor):
        says = "One tensor came back. With a residual there are two: the normalized rows, and the sum."
    if check.true("two things come back", is_pair, says):
        weight = weight.to(kind)
        total = before[0].double() + before[1].double()
        rounded = total.to(kind)
        expected = normalized(rounded, weight, eps)
        tolerance = 1e-4 if kind == torch.float32 else 0.012
        exchanged = all(isinstance(part, torch.Tensor) and part.shape == x.shape for part in result)
        exchanged = exchanged and same(result[0], rounded, tolerance) and same(result[1], expected, tolerance)
        exchanged = exchanged and not same(rounded, expected, tolerance)
        if check.true("the normalized rows come first, then the sum", not exchanged,
                      "The two have changed places: the normalized rows come first, then the sum."):  # fmt: skip
            all_right = is_right(result[0], expected, tolerance) and is_right(result[1], rounded, 1e-5)
            first, second = ({}, {}) if all_right else sums(*before, weight, eps)
            first |= {} if all_right else norm_mistakes(rounded, weight, eps)
            first |= {ALL_ZERO: torch.zeros_like(expected)} if kind == torch.float16 else {}
            if has_no_nan(check, result[0], expected, first, tolerance):
                rows = {"x": before[0].float(), "the residual": before[1].float()}
                check_tensor(check, "the normalized rows", result[0], expected.float(), AXES[x.ndim],
                             first, rows, kind, tolerance)  # fmt: skip
            check_tensor(check, "the sum", result[1], rounded.float(), AXES[x.ndim], second, {}, kind, 1e-5)
    check.true("x is as it was", torch.equal(x, before[0]), CHANGED.format("x", "it"))
    check.true("the residual is as it was", torch.equal(residual, before[1]), CHANGED.format("The residual", "it"))


def ask_alone(engine, check, x, weight, eps=1e-6):
    """Normalize without a residual."""
    norm, before = make_norm(engine, x, weight, eps), x.clone()
    check.step(f"without a residual: x {told(x)}", FORWARD_RAISED)
    got = norm.forward(x)
    if isinstance(got, tuple | list):
        says = "Without a residual the normalized rows come back alone, and not a tuple."
        check.equal("type of what comes back", type(got).__name__, "Tensor", says)
    else:
        wide = before.double()
        more = {
            "x was added to itself; without a residual, x is normalized.": normalized(wide, weight, eps) + wide,
            "x was normalized twice.": normalized(normalized(wide, weight, eps), weight, eps),
            "It was normalized as if x were the residual, too: x was added to itself.": normalized(
                2 * wide, weight, eps),
        }  # fmt: skip
        tolerance = 1e-4 if x.dtype == torch.float32 else 0.012
        right = normalized(before, weight.to(x.dtype), eps)
        more |= {} if is_right(got, right, tolerance) else norm_mistakes(before, weight, eps)
        more |= {ALL_ZERO: torch.zeros_like(right)} if x.dtype == torch.float16 else {}
        check_tensor(check, "what comes back", got, right.float(), AXES[x.ndim], more, {"x": before.float()}, x.dtype,
                     tolerance)  # fmt: skip
    check.true("x is as it was", torch.equal(x, before), CHANGED.format("x", "it"))


@case("ch12.norm_forward")
def without_a_residual(engine, check):
    """The first norm of all: there is no residual yet."""
    ask_alone(engine, check, numbers(2, 5, seed=20), weights(5), 0.1)


@case("ch12.norm_forward")
def with_a_residual(engine, check):
    """Two tokens. What the layer before has made is added to the stream, and the sum is normalized."""
    ask_forward(engine, check, numbers(2, 4, seed=21), numbers(2, 4, seed=22), weights(4), 0.1)


@case("ch12.norm_forward")
def a_large_stream(engine, check):
    """Late in a model the stream is large, and what is added to it small."""
    ask_forward(engine, check, numbers(3, 6, seed=23), numbers(3, 6, seed=24, scale=40.0), weights(6))


@case("ch12.norm_forward")
def a_residual_of_zeros(engine, check):
    """A residual of zeros is a residual; so is one with a single number, and one without any row."""
    ask_forward(engine, check, numbers(2, 3, seed=25), torch.zeros(2, 3), weights(3))
    ask_forward(engine, check, torch.tensor([[2.0]]), torch.tensor([[0.0]]), torch.tensor([1.5]), 0.5)
    ask_forward(engine, check, torch.zeros(0, 4), torch.zeros(0, 4), weights(4))


@case("ch12.norm_forward")
def layer_after_layer(engine, check):
    """Three norms, each of which gets the sum that the one before has given back."""
    norm = make_norm(engine, torch.zeros(1, 4), weights(4), 0.01)
    parts = [numbers(2, 4, seed=seed) for seed in (26, 27, 28, 29)]
    check.step("the embedding and what three layers add to it, one after the other", FORWARD_RAISED)
    stream, totals, kept = parts[0], [], parts[0].double()
    for part in parts[1:]:
        result = norm.forward(part, stream)
        if not check.true("two things come back", isinstance(result, tuple | list) and len(result) == 2,
                          "With a residual two things come back: the normalized rows, and the sum."):  # fmt: skip
            return
        totals.append((result, kept := kept + part.double()))
        stream = result[1]
    wrong = [n for n, (result, total) in enumerate(totals) if not same(result[1], total, 1e-5)]
    check.equal("norms after which the sum is not that of all so far", wrong, [],
                "What a norm gives back as the sum was changed by a later one, or is not the sum.")  # fmt: skip


@case("ch12.norm_forward")
def three_dimensions(engine, check):
    """Rows in two dimensions, with and without a residual; as many as features."""
    ask_forward(engine, check, numbers(3, 3, 3, seed=30), numbers(3, 3, 3, seed=31), weights(3))
    ask_alone(engine, check, numbers(2, 3, 4, seed=32), weights(4))


@case("ch12.norm_forward")
def sums_in_bfloat16(engine, check):
    """bfloat16, as on a GPU: the sum comes back in it, too."""
    x, residual = numbers(3, 8, seed=33).bfloat16(), numbers(3, 8, seed=34, scale=30.0).bfloat16()
    ask_forward(engine, check, x, residual, weights(8))
    ask_alone(engine, check, x, weights(8))


@case("ch12.norm_forward")
def large_sums_in_float16(engine, check):
    """Rows in float16 that are as they should be, though the squares of their numbers are too large for it."""
    x, residual = numbers(3, 6, seed=35).half(), numbers(3, 6, seed=36, scale=2000.0).half()
    ask_forward(engine, check, x, residual, weights(6))
    ask_alone(engine, check, residual, weights(6))


# SiluAndMul


def sigmoid(v):
    return 1 / (1 + math.exp(-v)) if v > -700 else 0.0


def silu(v):
    return v * sigmoid(v)


def gelu(v):
    return v * 0.5 * (1 + math.erf(v / math.sqrt(2)))


def softplus(v):
    return v if v > 30 else math.log1p(math.exp(v))


GATED = {
    "The halves have changed places: the first one is the gate, which goes through SiLU.": lambda g, u: g * silu(u),
    "It is the sigmoid of the gate that was multiplied; SiLU is the gate times its sigmoid.":
        lambda g, u: sigmoid(g) * u,
    "The sigmoid of the second half was multiplied with the first: SiLU is the gate times its own sigmoid, and the "
    "gate is the first half.": lambda g, u: g * sigmoid(u),
    "Both halves went through SiLU; only the gate does.": lambda g, u: silu(g) * silu(u),
    "SiLU was taken of the product; it is taken of the gate, and then multiplied.": lambda g, u: silu(g * u),
    "SiLU is missing: the halves were multiplied as they are.": lambda g, u: g * u,
    "The product is missing: SiLU of the gate came back alone.": lambda g, u: silu(g),
    "SiLU of the second half came back alone; the first half is the gate, and the second is multiplied.":
        lambda g, u: silu(u),
    "The first half came back as it was.": lambda g, u: g,
    "The second half came back as it was: the gate is missing.": lambda g, u: u,
    "The halves were added; they are multiplied.": lambda g, u: silu(g) + u,
    "It was divided by the second half; it is multiplied.": lambda g, u: over(silu(g), u),
    "ReLU was taken of the gate in place of SiLU.": lambda g, u: max(g, 0.0) * u,
    "The square of ReLU was taken of the gate in place of SiLU.": lambda g, u: max(g, 0.0) ** 2 * u,
    "GELU was taken of the gate in place of SiLU.": lambda g, u: gelu(g) * u,
    "GELU with a tanh was taken of the gate in place of SiLU.":
        lambda g, u: 0.5 * g * (1 + math.tanh(math.sqrt(2 / math.pi) * (g + 0.044715 * g**3))) * u,
    "The quick GELU, with 1.702 in the exponent, was taken of the gate in place of SiLU.":
        lambda g, u: g * sigmoid(1.702 * g) * u,
    "The hyperbolic tangent was taken of the gate in place of SiLU.": lambda g, u: math.tanh(g) * u,
    "The gate was multiplied with its hyperbolic tangent; SiLU has the sigmoid.": lambda g, u: g * math.tanh(g) * u,
    "Softplus was taken of the gate in place of SiLU.": lambda g, u: softplus(g) * u,
    "Mish was taken of the gate in place of SiLU.": lambda g, u: g * math.tanh(softplus(g)) * u,
    "ELU was taken of the gate in place of SiLU.": lambda g, u: (g if g > 0 else math.expm1(g)) * u,
    "A leaky ReLU was taken of the gate in place of SiLU.": lambda g, u: (g if g > 0 else 0.01 * g) * u,
    "Hardswish was taken of the gate in place of SiLU.": lambda g, u: g * min(max(g + 3, 0.0), 6.0) / 6 * u,
    "The minus in the exponent is missing: it is g / (1 + exp(-g)).": lambda g, u: g * sigmoid(-g) * u,
    "There is a minus where a plus belongs: it is g / (1 + exp(-g)).":
        lambda g, u: over(g, 1 - math.exp(min(-g, 700))) * u,
    "The 1 is missing below: it is g / (1 + exp(-g)).": lambda g, u: g * math.exp(min(g, 700)) * u,
    "SiLU was taken twice.": lambda g, u: silu(silu(g)) * u,
    "The gate was multiplied once more: SiLU(g) is g times its sigmoid, once.": lambda g, u: g * silu(g) * u,
    "The gate was multiplied into it twice: it is SiLU(gate) * up, and both factors here come from the gate.":
        lambda g, u: silu(g) * g,
    "The second half was multiplied twice.": lambda g, u: silu(g) * u * u,
    "The gate's complement came out: up * (1 - SiLU(gate)).": lambda g, u: (1 - silu(g)) * u,
    "The product was added to the second half.": lambda g, u: u + silu(g) * u,
    "The product was added to the first half.": lambda g, u: g + silu(g) * u,
    "SiLU of the second half was multiplied with the second half; the gate is the first half, and it is missing.":
        lambda g, u: silu(u) * u,
    "The sigmoids of both halves were multiplied; SiLU of the gate is multiplied with the second half as it is.":
        lambda g, u: sigmoid(g) * sigmoid(u),
    "The logarithm of the sigmoid was taken of the gate in place of SiLU.": lambda g, u: -softplus(-g) * u,
    "ReLU was taken of the second half; it is multiplied as it is.": lambda g, u: silu(g) * max(u, 0.0),
    "The signs of the gate are gone: SiLU was taken of its absolute value.": lambda g, u: silu(abs(g)) * u,
    "SELU was taken of the gate in place of SiLU.":
        lambda g, u: 1.0507009873554805 * (g if g > 0 else 1.6732632423543772 * math.expm1(g)) * u,
    "The sigmoid of the gate came back, without the gate and the second half.": lambda g, u: sigmoid(g),
}  # fmt: skip


def gated(x, function):
    """Each pair of a row's halves through a function."""
    size = x.shape[-1] // 2
    rows = x.double().reshape(-1, 2 * size).tolist()
    values = [[function(row[i], row[i + size]) for i in range(size)] for row in rows]
    return torch.tensor(values, dtype=torch.float64).reshape(*x.shape[:-1], size)


def gate_mistakes(x):
    """What each known mistake gives."""
    found = {text: gated(x, wrong) for text, wrong in GATED.items()}
    size, wide = x.shape[-1] // 2, x.double()
    if size > 1:
        even, odd = wide[..., ::2], wide[..., 1::2]
        both = {"even": torch.cat((even, odd), -1), "odd": torch.cat((odd, even), -1)}
        text = "Gate and up were taken for neighbors; the gate is the first half of the features, up is the second."
        found[text] = gated(both["even"], lambda g, u: silu(g) * u)
        found[f"{text} "] = gated(both["odd"], lambda g, u: silu(g) * u)
        turned = torch.cat((wide[..., :size], wide[..., size:].flip(-1)), -1)
        found["The second half is in the opposite order."] = gated(turned, lambda g, u: silu(g) * u)
        first = wide[..., :size].softmax(-1) * wide[..., size:]
        found["A softmax was taken of the gate in place of SiLU."] = first
        first = torch.cat((wide[..., :1].expand(*x.shape[:-1], size), wide[..., size:]), -1)
        found["Every feature was multiplied by the first gate."] = gated(first, lambda g, u: silu(g) * u)
    for bound in (1, 5, 6, 8, 10, 15, 16, 20, 30, 50, 60, 80, 88):
        text = f"Gates above {bound} were cut to {bound}: far above zero SiLU is the gate itself, however large."
        found[text] = gated(x, lambda g, u, bound=bound: silu(min(g, bound)) * u)
    if x.ndim > 1 and x.numel() > 2 * size:
        first, second = wide.reshape(2, -1)
        text = "All numbers were cut into two halves, the first rows and the last. Each row has its own two halves."
        found[text] = gated(torch.stack((first, second), -1), lambda g, u: silu(g) * u).reshape(*x.shape[:-1], size)
    wide_shape = (
        "There are as many features as came in. The second half is multiplied into the first, so that only half "
    )
    wide_shape += "as many come back."
    found[wide_shape] = torch.zeros(*x.shape)
    if x.ndim > 1 and x.shape[0] > 1 and x.shape[0] % 2 == 0:
        rows = x.shape[0] // 2
        halves = gated(torch.cat((wide[:rows], wide[rows:]), -1), lambda g, u: silu(g) * u)
        text = "The rows were cut into halves; it is the features of each row that have two halves, the last dimension."
        found[text] = halves
    if x.ndim == 3 and x.shape[1] % 2 == 0:
        parts = wide[:, : x.shape[1] // 2], wide[:, x.shape[1] // 2 :]
        text = "The middle dimension was cut into halves; it is the last one, dim=-1, however many there are."
        found[text] = gated(torch.cat(parts, -1), lambda g, u: silu(g) * u)
    return found


SILU_RAISED = {
    "RuntimeError": "The shapes do not fit together. Both halves of the last dimension have the same size, half of "
    "x.shape[-1].",
    "IndexError": "A dimension was named that x does not have: the features are dim=-1.",
    "NameError": "A name is used that does not exist here. SiLU is F.silu, or a number times its sigmoid.",
    "TypeError": "Something was called with other arguments than it takes; a size is an int, // makes one.",
    "ValueError": "Something was unpacked into another number of parts than it has: chunk(2, dim=-1) gives two.",
    "AttributeError": "Something is asked for what it does not have. SiLU is F.silu, or a number times its sigmoid.",
    "UnboundLocalError": "A variable is used before it has a value.",
}
OVERFLOW = (
    "There is nan: exp of a large number is inf, and inf / inf is nan. g / (1 + exp(-g)) and sigmoid have no such "
)
OVERFLOW += "place."
SHAPES = {1: ("feature",), 2: ("row", "feature"), 3: ("token", "part", "feature")}


def ask_silu(engine, check, x, text, tolerance=1e-4):
    """Gate, and compare with numbers computed one by one."""
    before, kind = x.clone(), x.dtype
    check.step(f"{text}: x {told(x)}, {str(kind).removeprefix('torch.')}", SILU_RAISED)
    got = engine.get("layers.activation:SiluAndMul")().forward(x)
    right = gated(before, lambda g, u: silu(g) * u)
    mistakes = {} if is_right(got, right, tolerance) else gate_mistakes(before)
    has_form = isinstance(got, torch.Tensor) and got.shape == right.shape
    says = next((t for t, other in mistakes.items() if has_form and same(got, other, tolerance)), OVERFLOW)
    has_nan = has_form and bool(got.isnan().any())
    if check.true("no number is nan", not has_nan, says):
        size = x.shape[-1] // 2
        halves = {"the first half": before[..., :size].float(), "the second half": before[..., size:].float()}
        check_tensor(check, "what comes back", got, right.float(), SHAPES[x.ndim], mistakes, halves, kind, tolerance)
    check.true("x is as it was", torch.equal(x, before),
               "x has changed: it was written into. The halves of chunk are views of x, no copies.")  # fmt: skip


@case("ch12.silu_and_mul")
def one_token(engine, check):
    """One token, three features: a gate that is open, one that is nearly shut, one that is below zero."""
    ask_silu(engine, check, torch.tensor([[2.0, 0.25, -1.5, 0.75, 3.0, -2.0]]), "gates 2, 0.25, -1.5")


@case("ch12.silu_and_mul")
def several_tokens(engine, check):
    """Five tokens of four features."""
    ask_silu(engine, check, numbers(5, 8, seed=40), "five tokens")


@case("ch12.silu_and_mul")
def odd_sizes(engine, check):
    """Five features, three, one: halves need not be even."""
    for size in (5, 3, 1):
        ask_silu(engine, check, numbers(3, 2 * size, seed=41 + size), f"size {size}")


@case("ch12.silu_and_mul")
def as_many_tokens_as_features(engine, check):
    """Six tokens, six numbers each; four tokens, of four features."""
    ask_silu(engine, check, numbers(6, 6, seed=50), "six by six")
    ask_silu(engine, check, numbers(4, 8, seed=51), "four tokens of four features")


@case("ch12.silu_and_mul")
def other_shapes_of_x(engine, check):
    """Three dimensions; a single row; two tokens; no token at all."""
    for shape in ((2, 4, 6), (4, 2, 2), (6,), (2, 4), (0, 6)):
        ask_silu(engine, check, numbers(*shape, seed=52), f"shape {list(shape)}")


@case("ch12.silu_and_mul")
def large_gates(engine, check):
    """Gates of 100 and of -100, whose exponentials float32 does not have; and zeros."""
    ask_silu(engine, check, torch.tensor([[100.0, -100.0, 0.0, 90.0, 2.0, 2.0, 2.0, -0.5]]), "large gates")


@case("ch12.silu_and_mul")
def in_half_precision(engine, check):
    """bfloat16 and float16 come back as they came."""
    for kind, tolerance in ((torch.bfloat16, 0.015), (torch.float16, 0.003)):
        ask_silu(engine, check, numbers(3, 8, seed=53).to(kind), "half precision", tolerance)


@case("ch12.silu_and_mul")
def part_of_something_larger(engine, check):
    """x is every second row of a larger tensor."""
    large = numbers(6, 10, seed=54)
    ask_silu(engine, check, large[::2], "every second row")
    check.true("the rest is as it was", torch.equal(large, numbers(6, 10, seed=54)), "Something behind x has changed.")


@case("ch12.silu_and_mul")
def features_of_a_model(engine, check):
    """Random numbers in the shape of qwen3-tiny's MLP: three tokens, 896 gates."""
    x = 2 * torch.randn(3, 1792, generator=torch.Generator().manual_seed(55))
    ask_silu(engine, check, x, "896 gates")


# half_norm

HALF_RAISED = RAISED | {
    "RuntimeError": "The shapes do not fit together, or two dtypes. keepdim=True keeps a dimension of 1 for each row.",
    "NameError": "A name is used that does not exist here; this is a plain function: eps and weight are arguments.",
    "AttributeError": "Something is asked for what it does not have; this is a plain function: there is no self.",
}


def largest_error(got, right, x, error):
    """In which row a number is the farthest off, and on which side."""
    place, features = int(error.argmax()), x.shape[-1]
    row, size = place // features, x.double().reshape(-1, features).square().mean(-1).sqrt()[place // features]
    value, wanted = float(got.reshape(-1)[place]), float(right.reshape(-1)[place])
    side = "small" if abs(value) < abs(wanted) else "large"
    text = f"In row {row}, which has a root mean square of {float(size):.3g}, {value:.4g} came out for {wanted:.4g}"
    return f"{text}, too {side}: an error of {float(error.max()):.3g}; at most {norm_work.LARGEST_ERROR} is asked for."


def ask_in_float16(engine, check, x, weight, text):
    """Normalize in float16, and look at the largest error, at dtypes, and at what came in."""
    check.step(f"{text}: x of shape {list(x.shape)}", HALF_RAISED)
    before = x.clone(), weight.clone()
    got, broken = norm_work.in_float16(engine.get("labs:half_norm"), x, weight, 1e-6)
    says = "Nothing came back: a return is missing." if got is None else "A tensor is promised."
    if not check.true("a tensor comes back", isinstance(got, torch.Tensor), says):
        return
    form = (list(got.shape), str(got.dtype).removeprefix("torch."))
    if not check.equal("its shape and dtype", form, (list(x.shape), "float16"), "They are those of x."):
        return
    right = normalized(before[0], before[1], 1e-6)
    check.equal("numbers that are nan or inf", int((~got.isfinite()).sum()), 0,
                "A number became too large on the way, or 0 was divided by 0.")  # fmt: skip
    error = ((got.double() - right).abs() / right.abs().clamp_min(1.0)).nan_to_num(9.0)
    worst = float(error.max()) if error.numel() else 0.0
    is_zero = error.numel() and not got.any() and bool(right.any())
    says = largest_error(got, right, before[0], error) if error.numel() else ""
    says = "All numbers are 0: a mean square has become inf." if is_zero else says
    check.true(f"no error is larger than {norm_work.LARGEST_ERROR}", worst <= norm_work.LARGEST_ERROR, says)
    check.equal(
        "what is not float16 on the way", broken, "", "Only float16 may be used on the way, all of it in tensors."
    )
    check.true("x and the weight are as they were", torch.equal(x, before[0]) and torch.equal(weight, before[1]),
               "What came in has changed; it stays as it is.")  # fmt: skip


def rows_of(*sizes, features=256, seed=60):
    """Rows of float16 with these root mean squares, never less, and none of the numbers too large."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(len(sizes), features, generator=generator).clamp(-3, 3)
    rows *= 1.001 / rows.square().mean(dim=-1, keepdim=True).sqrt()  # what is added, rounding may take
    return (rows * torch.tensor(sizes).unsqueeze(1)).half()


def weight_near_one(features):
    return torch.linspace(0.5, 1.5, features).half()


@case("ch12.half_norm")
def usual_rows(engine, check):
    """Rows with a root mean square of 1, of 0.05, and of 20."""
    ask_in_float16(engine, check, rows_of(1.0, 0.05, 20.0), weight_near_one(256), "usual rows")


@case("ch12.half_norm")
def large_rows(engine, check):
    """Rows of 300, of 3,000 and of 20,000, and one that is 65,504 everywhere. A small one stands beside them."""
    x = torch.cat((rows_of(300.0, 3000.0, 20_000.0, 0.05), torch.full((1, 256), 65_504.0).half()))
    ask_in_float16(engine, check, x, weight_near_one(256), "large rows")


@case("ch12.half_norm")
def rows_with_a_peak(engine, check):
    """Rows of the size of 1 with one number of 300, of -7,000 and of 60,000, as real streams have."""
    x = rows_of(1.0, 1.0, 1.0, seed=61)
    x[:, 70] = torch.tensor([300.0, -7000.0, 60_000.0]).half()
    ask_in_float16(engine, check, x, weight_near_one(256), "rows with a peak")


@case("ch12.half_norm")
def rows_of_zeros(engine, check):
    """A row of zeros among others, and one alone."""
    x = rows_of(1.0, 5.0, 300.0, features=64)
    x[1] = 0.0
    ask_in_float16(engine, check, x, weight_near_one(64), "zeros")
    ask_in_float16(engine, check, torch.zeros(1, 8).half(), weight_near_one(8), "zeros alone")


@case("ch12.half_norm")
def shapes_and_sizes(engine, check):
    """Heads; 2,048 features, all of 50,000; one feature; a single row; no row."""
    ask_in_float16(
        engine, check, rows_of(0.5, 400.0, 2.0, 9.0, features=64).view(2, 2, 64), weight_near_one(64), "heads"
    )
    x = torch.full((2, 2048), 50_000.0).half()
    ask_in_float16(engine, check, x, weight_near_one(2048), "2,048 features")
    ask_in_float16(engine, check, torch.tensor([[3.0], [-400.0]]).half(), weight_near_one(1), "one feature")
    ask_in_float16(engine, check, rows_of(600.0, features=32)[0], weight_near_one(32), "a single row")
    ask_in_float16(engine, check, torch.zeros(0, 16).half(), weight_near_one(16), "no row")


@case("ch12.half_norm")
def the_model_reads(engine, check):
    """qwen3-tiny reads 1,024 tokens of stories, with this norm at all of its places."""
    check.step("the loss of the bundled model", HALF_RAISED)
    loss = norm_work.loss_in_float16(engine.get("labs:half_norm"))
    check.measured(f"loss: {loss:.3f}; at most {norm_work.BAR} is asked for")
    about = f"it is {norm_work.IN_FLOAT16} with the formula as it stands, and {norm_work.IN_FLOAT32} in float32"
    check.true(f"at most {norm_work.BAR}", loss <= norm_work.BAR, f"The loss is {loss:.3f}; {about}.")
