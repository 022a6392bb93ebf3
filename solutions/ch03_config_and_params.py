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
from pathlib import Path
import psutil
from nanovllm.utils.memory import CGROUP, available_memory, kv_block_bytes, num_blocks_that_fit
from collections.abc import Sequence
from exercises.kit.budget_work import simulate
from nanovllm.utils.memory import num_blocks_that_fit


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


# --- ch03.what_would_help
# Whoever reads an error wants to know what to do, not what might be worth a try. The question "would it start then?" can
# be asked for each option by itself, with the very function that decides, so the advice cannot be wrong where that
# function is right. An empty list is a result, too: with weights that are larger than the memory, no option helps, and
# nobody should spend an afternoon on them.
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
    if num_blocks_that_fit(total, in_use, activations, utilization, block_bytes):
        return []
    changes = {
        "gpu_memory_utilization": (total, in_use, activations, 1.0, block_bytes),
        "max_num_batched_tokens": (total, in_use, 0, utilization, block_bytes),
        "kvcache_block_size": (total, in_use, activations, utilization, block_bytes // block_size),
    }
    return [name for name, changed in changes.items() if num_blocks_that_fit(*changed) > 0]


# --- ch03.how_many_fit
# Blocks are whole, so each request rounds up by itself: dividing the sum of all tokens by the block size would fill the
# empty slots at the end of one request with tokens of another. And the first that has no room ends it, although a shorter
# one behind it might fit: if short requests overtook, a long one could wait forever. Chapter 6 comes back to that.
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
    count = 0
    for length in lengths[:max_num_seqs]:
        num_blocks -= (length + block_size - 1) // block_size
        if num_blocks < 0:
            break
        count += 1
    return count


# --- ch03.choose_options
# max_num_batched_tokens pays for prompts: the more fit into a step, the fewer steps they take. It costs cache, and so
# requests that decode beside one another. Which of the two counts depends on the work: documents want large steps, stories
# want cache. No formula is needed where the real scheduler can be asked, in less time than one step of a large model
# takes. What it does not know is how long a step takes: on a GPU one has to measure in the end.
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

    def with_steps_of(num_tokens: int) -> dict[str, int]:
        return {"kvcache_block_size": 16, "max_num_batched_tokens": num_tokens}

    def num_steps(num_tokens: int) -> float:
        try:
            return simulate(with_steps_of(num_tokens), workload, room, kv_bytes, step_bytes).steps
        except MemoryError:
            return math.inf

    return with_steps_of(min([2**n for n in range(8, 13)], key=num_steps))
