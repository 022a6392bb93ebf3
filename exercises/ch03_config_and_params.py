"""Your answers to chapter 03, config and params.

Write here, or in the notebook's cells, which write here. Helpers and imports may stand beside a function, under its
marker line. "python -m exercises check" says how it is going; "python -m exercises" what there is to do.
"""

# derived: 1c2fc9bd5326
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
    raise NotImplementedError("ch03.check_int")


# --- ch03.check_float
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
    raise NotImplementedError("ch03.check_float")


# --- ch03.normalize_stop
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
    raise NotImplementedError("ch03.normalize_stop")


# --- ch03.num_blocks_that_fit
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
    raise NotImplementedError("ch03.num_blocks_that_fit")
