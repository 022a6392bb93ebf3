"""The memory budget: how much there is, what a block takes, and how many blocks fit."""

from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup")


def available_memory() -> int:
    """Bytes that a new allocation may take: what the machine has left, or the container.

    A container (cgroup v2) that goes beyond its limit is killed without a word, however much the
    machine has.
    """
    available = psutil.virtual_memory().available
    try:
        names = ("memory.max", "memory.current")
        limit, used = (int((CGROUP / name).read_text()) for name in names)
        stat = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
        reclaimable = int(stat["file"])  # cached files count as used, but make room
    except (OSError, ValueError, KeyError):  # not a container, or one without a limit ("max")
        return available
    return max(0, min(available, limit - used + reclaimable))


def kv_block_bytes(
    num_layers: int, block_size: int, num_kv_heads: int, head_dim: int, element_size: int
) -> int:
    """Bytes of one block of the KV cache.

    Every token has a key and a value, of `head_dim` numbers each, in every layer and for every KV
    head.

    Args:
        num_kv_heads: those of one rank.
        element_size: bytes of one number: 2 in bfloat16, 4 in float32.
    """
    return 2 * num_layers * block_size * num_kv_heads * head_dim * element_size


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
