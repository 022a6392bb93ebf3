"""Your answers to chapter 03, config and params.

Write here, or in the notebook's cells, which write here. Helpers and imports may stand beside a function, under its
marker line; those at the top are for all. "python -m exercises check" says how it is going; "python -m exercises" what
there is to do.
"""

# derived: 402e839367cd
# ruff: noqa
# mypy: ignore-errors
# fmt: off

from __future__ import annotations

import math
import numbers
import operator
from typing import Any
from nanovllm.validation import check_int, check_float, check_bool, check_choice
from pathlib import Path
import psutil
from nanovllm.utils.memory import CGROUP, available_memory, kv_block_bytes, num_blocks_that_fit
from collections.abc import Sequence
from exercises.kit.budget_work import simulate
from nanovllm.utils.memory import num_blocks_that_fit


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


# --- ch03.what_would_help
def what_would_help(
    total: int, in_use: int, activations: int, utilization: float, block_bytes: int, block_size: int
) -> list[str]:
    """Which options would let an engine start that has no room for a single block of KV cache.

    An option helps if a change of it alone, however large, makes room for at least one block:

    - "gpu_memory_utilization" can be raised to 1;
    - "max_num_batched_tokens" can be lowered until a step takes next to nothing: 0 bytes;
    - "kvcache_block_size" can be lowered to 1: such a block takes `block_bytes / block_size`,
      which is a whole number.

    Args:
        total, in_use, activations, utilization, block_bytes: as in `num_blocks_that_fit`, which
            can be called here.
        block_size: tokens in a block.

    Returns:
        the names of those that help, in the order above. The list is empty if a block fits as it
        is, so that nothing has to be changed; and also if no option helps, so that it has to be
        another model or another GPU.
    """
    raise NotImplementedError("ch03.what_would_help")


# --- ch03.how_many_fit
def how_many_fit(
    lengths: Sequence[int],
    num_blocks: int,
    block_size: int,
    max_num_seqs: int,
) -> int:
    """How many requests have room in the KV cache beside one another.

    They come in the order of the list, and the first that has no room ends it: nobody overtakes.

    Args:
        lengths: tokens of each request. It takes whole blocks, as many as its tokens need; no two
            requests share one.
        num_blocks: of the whole cache.
        block_size: tokens that a block holds.
        max_num_seqs: the most requests that run at once, however much room there is.

    Returns:
        a whole number (an `int`) of requests.
    """
    raise NotImplementedError("ch03.how_many_fit")


# --- ch03.choose_options
def choose_options(
    workload: Sequence[tuple[int, int]],
    room: int,
    kv_bytes: int,
    step_bytes: int,
) -> dict[str, int]:
    """Options with which an engine gets a workload done in few steps, with the memory there is.

    The goal: the three workloads, which take 2,242 steps with the defaults and 3.5 GB, take at most
    1,000 with the same room, and none of them takes more than before. And the engine has to start
    with less room, too, down to 0.4 GB: the longest request of the workload has to fit into the
    cache. `simulate` can be called here.

    Args:
        workload: tokens of prompt and answer of each request; all of them come at once.
        room: bytes; what the largest step does not take of them, the cache gets, in whole blocks.
        kv_bytes: of one token in the cache.
        step_bytes: of activations, for each token that a step may have.

    Returns:
        some or all of "kvcache_block_size" (a multiple of 16, as fast kernels want it),
        "max_num_batched_tokens" and "max_num_seqs".
    """
    raise NotImplementedError("ch03.choose_options")
