"""Checks of arguments, shared by `Config` and `SamplingParams`.

Every message names the argument, shows the value and says what would be accepted.
"""

import math
import numbers
import operator
from typing import Any


def check_int(name: str, value: Any, minimum: int) -> int:
    """Return `value` as an `int` if it is a whole number from `minimum` on; refuse the rest.

    Integers of other libraries are integers, too: `np.int64(3)` is one, like everything that is
    a `numbers.Integral`. `True` and `False` are refused, although Python counts them among the
    integers, and so are `3.0` and `"3"`: nothing is rounded, or read out of a text.

    Args:
        name: of the argument, for the message.
        value: as it was given.
        minimum: the smallest accepted value.

    Raises:
        TypeError: `value` is no integer. The message holds `name` and the `repr` of `value`.
        ValueError: it is below `minimum`. The message holds `name`, `value` and `minimum`.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an integer, got {value!r} of type {type(value).__name__}")
    number = operator.index(value)
    if number < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {value}")
    return number


def check_float(name: str, value: Any, minimum: float = 0.0, maximum: float = math.inf) -> float:
    """Return `value` as a `float` if it is a finite number in the range, both ends included.

    Integers are numbers, and so is every other `numbers.Real`, such as `np.float32(0.5)`.
    `True`, `"0.5"` and complex numbers are not. `math.nan` and infinity are of the right type,
    but in no range.

    Args:
        name: of the argument, for the message.
        value: as it was given.
        minimum, maximum: the range.

    Raises:
        TypeError: `value` is no number. The message holds `name` and the `repr` of `value`.
        ValueError: it is not finite, is out of the range, or is an integer larger than any
            float (`float` raises OverflowError for it). The message holds `name` and `value`.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {value!r} of type {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:  # an integer beyond any float
        number = math.inf
    if not math.isfinite(number) or not minimum <= number <= maximum:
        accepted = f"at least {minimum}" if maximum == math.inf else f"in [{minimum}, {maximum}]"
        raise ValueError(f"{name} must be a finite number {accepted}, got {value}")
    return number


def check_bool(name: str, value: Any) -> bool:
    """Return `value` if it is a `bool`; raise `TypeError` otherwise."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return value


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    """Return `value` if it is one of `choices`; raise `ValueError` otherwise."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return value
