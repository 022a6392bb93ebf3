"""Our answers to chapter 03, config and params, cut out of nanovllm/, each with its reason."""

# ruff: noqa
# mypy: ignore-errors
# fmt: off

from __future__ import annotations

import math
import numbers
import operator
from typing import Any
from nanovllm.validation import check_int, check_float, check_bool, check_choice
from collections.abc import Iterable
from dataclasses import dataclass
from nanovllm.validation import check_bool, check_float, check_int
from nanovllm.sampling_params import GREEDY_TEMPERATURE, SamplingParams, normalize_stop, _normalize_stop_token_ids, as_tuple
from pathlib import Path
import psutil
from nanovllm.utils.memory import CGROUP, available_memory, kv_block_bytes, num_blocks_that_fit


# --- ch03.check_int
# int(value) would round 3.7 and read "3"; the caller would never learn that something is wrong. isinstance(value, int)
# alone lets True through and keeps np.int64 out, and numbers that come from arrays are common. operator.index is the
# strict form of int: it never rounds. TypeError and ValueError are told apart, because they are different mistakes: the
# wrong kind of thing, and the wrong one of the right kind.
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


# --- ch03.check_float
# Every comparison with NaN is false, "too small?" as well as "too large?". Asked this way around, NaN passes. So we ask
# whether the number is inside, and refuse it if not. Infinity needs its own question, because with no upper end it is
# inside. A huge integer is a ValueError like any other number that is too large: the caller should not have to know that
# float gives up on it in a way of its own.
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


# --- ch03.normalize_stop
# The users' side may be generous, the engine's side should see one form only: everything behind this line can rely on a
# tuple of non-empty strings. A tuple cannot be changed afterwards, and an iterator is read once, here, and not used up by
# the first request. "" is refused instead of dropped: whoever passes it has made a mistake, and a text that never begins
# is a bad way to find out.
def normalize_stop(stop: str | Iterable[str] | None) -> tuple[str, ...]:
    """Bring the three ways to give stop strings into one form: a tuple, in the order given.

    A string on its own is one stop string, and None means that there are none. Anything else is
    a collection of stop strings: a list, a tuple, or an iterator, which can be gone through
    only once.

    Raises:
        TypeError: `stop`, or something in it, is no string. The message names the argument,
            `stop`, says what is accepted ("a non-empty string"), and holds the `repr` of what
            was wrong.
        ValueError: one of the strings is empty, which every text would contain; with such a
            message, too.
    """
    accepted = "a non-empty string or a list of them"
    strings = (stop,) if isinstance(stop, str) else as_tuple("stop", stop, accepted)
    for string in strings:
        if not isinstance(string, str):
            raise TypeError(f"stop must be {accepted}, got {string!r} ({type(string).__name__})")
        if not string:
            raise ValueError(f"stop must be {accepted}, got {string!r}")
    return strings


# --- ch03.num_blocks_that_fit
# gpu_memory_utilization is a share of the whole device, not of what happens to be free: it is a line that is not passed,
# and it means the same whatever the model. Activations are subtracted although they are gone at this moment: the pool
# is taken for good, and the largest step must find its room at any time. A negative rest is no number of blocks, so it
# becomes 0, and whoever asked can say what to do about it.
def num_blocks_that_fit(
    total: int, in_use: int, activations: int, utilization: float, block_bytes: int
) -> int:
    """How many blocks of KV cache a device has room for.

    The engine may fill the device up to a share of its whole memory. That limit is for
    everything on it together: what is in use already, what a step needs while it runs, and the
    KV cache, which gets the rest.

    Args:
        total: bytes of memory that the device has.
        in_use: bytes of it that are taken already, by the weights or by other programs.
        activations: bytes that the largest step takes beside these, and gives back when it is
            done.
        utilization: the share of `total` that may be filled, above 0 and up to 1.
        block_bytes: bytes of one block.

    Returns:
        A whole number (an `int`) of blocks; 0 if there is no room for any.
    """
    budget = int(total * utilization) - in_use - activations
    return max(0, budget // block_bytes)
