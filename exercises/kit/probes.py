"""How a tensor differs from the one that is right, in words: where first, and what it looks like.

    check_tensor(check, "output", got, expected, axes=("token", "head", "feature"),
                 mistakes={"The scores were not scaled.": attention(q, k, v, scale=1.0)})

Numbers are compared with a tolerance, and only the first that is wrong is written down, so that two spellings of a
mistake give the same observations.
"""

import itertools
from typing import Any

import torch
from torch import Tensor

from .grading import Check

TOLERANCE = 1e-4  # of the largest number that is expected
FEW = 8  # the longest axis whose orders are tried one by one


def check_tensor(
    check: Check,
    what: str,
    got: Any,
    expected: Tensor,
    axes: tuple[str, ...],
    mistakes: dict[str, Tensor] | None = None,
    inputs: dict[str, Tensor] | None = None,
    dtype: torch.dtype | None = None,
    tolerance: float = TOLERANCE,
) -> bool:
    """Observe a tensor: its kind, its shape, its dtype, then its numbers. Says what is wrong with the first of these.

    Args:
        expected: what is right, made by other means than ours; any float dtype.
        axes: the name of each dimension, in the singular.
        mistakes: what known mistakes give, by a sentence that says which; compared before anything else is guessed.
        inputs: tensors that may have come back unchanged, by name.
        dtype: by default that of `expected`.
        tolerance: of the largest number that is expected.
    """
    if not isinstance(got, Tensor):
        says = "Nothing came back: a return is missing." if got is None else "One tensor is asked for."
        return check.equal(f"type of {what}", type(got).__name__, "Tensor", says)
    found, wanted = list(got.shape), list(expected.shape)
    same = [text for text, other in (mistakes or {}).items() if list(other.shape) == found != wanted]
    says_shape = same[0] if same else _about_shape(got.detach().cpu(), expected, axes, tolerance)
    if not check.equal(f"shape of {what}, [{', '.join(map(_plural, axes))}]", found, wanted, says_shape):
        return False
    kind, promised = (str(kind).removeprefix("torch.") for kind in (got.dtype, dtype or expected.dtype))
    if not check.equal(f"dtype of {what}", kind, promised, f"It should be {promised}, and is {kind}."):
        return False
    difference = describe(got.detach().cpu(), expected, axes, tolerance)
    likely = "" if not difference else looks_like(got.detach().cpu(), expected, axes, mistakes, inputs, tolerance)
    return check.equal(what, difference or "as it should be", "as it should be", likely)


def describe(got: Tensor, expected: Tensor, axes: tuple[str, ...], tolerance: float = TOLERANCE) -> str:
    """Where the first wrong number is, what is there and what should be, and how many are wrong; "" if none is."""
    wrong = ~_close(got, expected, tolerance)
    if not wrong.any():
        return ""
    first = tuple(wrong.nonzero()[0].tolist())
    place = ", ".join(f"{axis} {i}" for axis, i in zip(axes, first, strict=True)) or "the only number"
    parts = [f"{place}: {_number(got[first])}, should be {_number(expected[first])}"]
    parts.append(f"{int(wrong.sum())} of {wrong.numel()} numbers are wrong")
    for dim, axis in enumerate(axes):
        others = [other for other in range(wrong.ndim) if other != dim]
        bad = wrong.any(others) if others else wrong
        if 0 < int(bad.sum()) < len(bad):
            parts.append(f"only in {axis} {_ranges(bad.nonzero().flatten().tolist())} of {len(bad)}")
    return "; ".join(parts)


def looks_like(
    got: Tensor,
    expected: Tensor,
    axes: tuple[str, ...],
    mistakes: dict[str, Tensor] | None = None,
    inputs: dict[str, Tensor] | None = None,
    tolerance: float = TOLERANCE,
) -> str:
    """What a wrong tensor of the right shape looks like, in a sentence that is true of it; "" if like nothing known."""
    got, expected = got.double(), expected.double()
    for text, other in (mistakes or {}).items():
        if _same(got, other, tolerance):
            return text
    for name, other in (inputs or {}).items():
        if _same(got, other, tolerance):
            return f"What came back is {name}, unchanged."
    if not got.isfinite().all() and (expected.isfinite().all() or got.isnan().any()):
        kind = "nan" if got.isnan().any() else "inf"
        return f"There is {kind} among the numbers: something was divided by 0, or a whole row was masked."
    if not got.any():
        return "All numbers are 0."
    largest = expected.flatten()[expected.abs().argmax()]
    factor = got.flatten()[expected.abs().argmax()] / largest
    if _same(got, -expected, tolerance):
        return "Every number has the opposite sign."
    if factor and _same(got, factor * expected, tolerance):
        return f"Every number is {float(factor):.4g} times what it should be."
    shift = (got - expected).mean()
    if _same(got, expected + shift, tolerance):
        return f"Every number is {float(shift):.4g} more than it should be."
    if _same(got, expected, 30 * tolerance) and tolerance <= TOLERANCE:
        return "The numbers are right to two or three digits only: something was computed in half precision."
    for dim, axis in enumerate(axes):
        if text := _about_axis(got, expected, dim, axis, tolerance):
            return text
    return _swapped(got, expected, axes, tolerance)


def _about_axis(got: Tensor, expected: Tensor, dim: int, axis: str, tolerance: float) -> str:
    """Whether it is right but for the order along one axis."""
    size = expected.shape[dim]
    if size < 2:
        return ""
    if _same(got, expected.flip(dim), tolerance) and size > 2:
        return f"The {_plural(axis)} are in the opposite order."
    for steps in range(1, min(size, 65)):
        for turn in (steps, -steps):
            if _same(got, expected.roll(turn, dim), tolerance):
                if size == 2:
                    return f"The two {_plural(axis)} have changed places."
                if size == 2 * steps:
                    return f"The two halves of the {_plural(axis)} have changed places."
                return f"The {_plural(axis)} are shifted by {steps}, {'forward' if turn > 0 else 'backward'}."
    if size % 2 == 0 and size > 2:
        halves = expected.unflatten(dim, (2, -1)).transpose(dim, dim + 1).flatten(dim, dim + 1)
        pairs = expected.unflatten(dim, (-1, 2)).transpose(dim, dim + 1).flatten(dim, dim + 1)
        if _same(got, halves, tolerance):
            return f"The {_plural(axis)} alternate between the first half and the second half of what they should be."
        if _same(got, pairs, tolerance):
            return f"First come the {_plural(axis)} with even numbers, then those with odd numbers."
    if not expected.isfinite().all():  # what is masked is alike everywhere, and tells nothing about an order
        return ""
    rows, wanted = got.movedim(dim, 0), expected.movedim(dim, 0)
    found = [[i for i in range(size) if _same(row, wanted[i], tolerance)] for row in rows] if size <= 64 else []
    if found and all(found) and any(j not in i for j, i in enumerate(found)):
        order = [i[0] for i in found]
        if len(set(order)) == size:
            return (
                f"The {_plural(axis)} are right, but in the order {order if size <= FEW else 'of another numbering'}."
            )
        if len(set(order)) == 1:
            return f"Every {axis} has the numbers of {axis} {order[0]}."
        return f"Every {axis} has numbers of a {axis}, but of another one: {order[:FEW]}{', ...' * (size > FEW)}."
    return ""


def _swapped(got: Tensor, expected: Tensor, axes: tuple[str, ...], tolerance: float) -> str:
    """Whether it is right but for two axes that have changed places."""
    for i, j in itertools.combinations(range(expected.ndim), 2):
        turned = expected.transpose(i, j)
        if turned.shape == got.shape and _same(got, turned, tolerance):
            return f"It is transposed: {_plural(axes[i])} and {_plural(axes[j])} have changed places."
        if _same(got, turned.reshape(got.shape), tolerance):
            names = f"{_plural(axes[i])} and {_plural(axes[j])}"
            return f"The numbers are there in another order: {names} were swapped before a view."
    return ""


def _about_shape(got: Tensor, expected: Tensor, axes: tuple[str, ...], tolerance: float) -> str:
    """What a tensor of another shape is."""
    if got.numel() == expected.numel():
        if _same(got.reshape(expected.shape), expected, tolerance):
            return "The numbers are right and in the right order; only the shape is another one."
        for i, j in itertools.combinations(range(expected.ndim), 2):
            turned = expected.transpose(i, j)
            if turned.shape == got.shape and _same(got, turned, tolerance):
                return f"It is transposed: {_plural(axes[i])} and {_plural(axes[j])} have changed places."
    if got.ndim == expected.ndim:
        other = [d for d in range(got.ndim) if got.shape[d] != expected.shape[d]]
        if len(other) == 1:
            axis, size = axes[other[0]], got.shape[other[0]]
            return f"There should be {expected.shape[other[0]]} {_plural(axis)}, and there are {size}."
    return ""


def _close(got: Tensor, expected: Tensor, tolerance: float) -> Tensor:
    """Where two tensors agree; what is not finite agrees only with the very same."""
    got, expected = got.double(), expected.double()
    finite = expected[expected.isfinite()]
    allowed = tolerance * max(float(finite.abs().max()) if finite.numel() else 1.0, 1e-6)
    return ((got - expected).abs() <= allowed) | (got == expected)


def _same(got: Tensor, expected: Tensor, tolerance: float) -> bool:
    return got.shape == expected.shape and bool(_close(got, expected, tolerance).all())


def _number(value: Tensor) -> str:
    number = float(value)
    return f"{number:.0f}" if number.is_integer() and abs(number) < 1e6 else f"{number:.3g}"


def _ranges(numbers: list[int]) -> str:
    """[0, 1, 2, 5, 7, 8] as "0 to 2, 5, 7 and 8", at most four of them."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    words = [
        " to ".join(map(str, run[:: len(run) - 1])) if len(run) > 2 else " and ".join(map(str, run)) for run in runs
    ]
    return ", ".join(words[:4]) + ", ..." * (len(words) > 4)


def _plural(axis: str) -> str:
    """Of the name of an axis: tokens, queries."""
    return f"{axis[:-1]}ies" if axis.endswith("ry") else f"{axis}s"
