"""Tiles of attention's kernels: the largest that fit into a GPU's shared memory."""

import sys
from functools import cache
from typing import Any

import torch

MAX_HEAD_DIM = 256  # beyond it, even a GPU whose shared memory is large enough lacks registers
# Keys that a decode program reads at a time: at most, in bytes, and at least.
MAX_DECODE_TILE, DECODE_TILE_BYTES, MIN_TILE = 128, 2**15, 16
# Queries of a prefill program, keys that it reads at a time, and how many such reads are under way
# or in use; the larger, the faster. Wide heads, of more than 256 bytes, begin at the third.
PREFILL_TILES = ((64, 64, 3), (64, 64, 2), (64, 32, 2), (32, 32, 2), (32, 16, 2), (16, 16, 2))


def shared_memory(device: torch.device) -> int:
    """Bytes of a GPU's fast memory that one program of a kernel may use; without limit elsewhere.

    64 KB on a T4, 163 on an A100, 99 on an RTX 30, 40 or 50, 227 on an H100 or B200 (CUDA C++
    Programming Guide, "Technical Specifications per Compute Capability").
    """
    return gpu_shared_memory(device) if device.type == "cuda" else sys.maxsize


@cache
def gpu_shared_memory(device: torch.device) -> int:
    """See `shared_memory`; asked once, because every launch of a kernel needs it."""
    properties: Any = torch.cuda.get_device_properties(device)
    return properties.shared_memory_per_block_optin


def decode_tile(
    head_dim: int, group: int, dtype: torch.dtype, memory: int
) -> tuple[int, int] | None:
    """Rows for the query heads of a KV head, and keys that a decode program reads at a time.

    A tile of keys and one of values lie in shared memory, beside the queries and the output, which
    are held in float32. None if that memory is too small for any tile.

    Args:
        head_dim: size of a head.
        group: query heads that share a KV head.
        dtype: of the cache.
        memory: see `shared_memory`.
    """
    num_rows = max(MIN_TILE, 1 << (group - 1).bit_length())
    tile = min(MAX_DECODE_TILE, DECODE_TILE_BYTES // (head_dim * dtype.itemsize))
    while tile >= MIN_TILE:
        if 2 * head_dim * (tile * dtype.itemsize + num_rows * 4) <= memory:
            return num_rows, tile
        tile //= 2
    return None


def prefill_tile(head_dim: int, dtype: torch.dtype, memory: int) -> tuple[int, int, int] | None:
    """The largest of `PREFILL_TILES` that fits into shared memory; None if none does.

    The reads under way lie there, keys and values, beside the queries and as much for the output.
    """
    is_wide = head_dim * dtype.itemsize > 256
    for num_rows, tile, num_stages in PREFILL_TILES[2 if is_wide else 0 :]:
        if 2 * head_dim * dtype.itemsize * ((num_stages - 1) * tile + num_rows) <= memory:
            return num_rows, tile, num_stages
    return None


def head_problem(hf_config: Any, dtype: torch.dtype, memory: int) -> str | None:
    """Why the Triton kernels cannot compute the heads of a model, or None."""
    head_dim = getattr(hf_config, "head_dim", None)
    if not head_dim:
        return None
    if not 16 <= head_dim <= MAX_HEAD_DIM or not is_power_of_two(head_dim):
        return f"it takes a head_dim of 16, 32, 64, 128 or 256, and the model's is {head_dim}"
    group = hf_config.num_attention_heads // hf_config.num_key_value_heads
    if decode_tile(head_dim, group, dtype, memory) and prefill_tile(head_dim, dtype, memory):
        return None
    return (
        f"a head_dim of {head_dim} in {dtype} with {group} query heads to a KV head does not fit "
        f"into the {memory // 1024} KB of shared memory that a program has on this GPU; use 'sdpa'"
    )


def is_power_of_two(number: int) -> bool:
    """Whether a positive number is 1, 2, 4, 8 and so on: sizes that Triton's kernels can hold."""
    return number & (number - 1) == 0
