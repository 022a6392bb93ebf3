"""How many blocks of KV cache the memory has room for, and what is said if there is not enough."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..config import Config
from ..layers.attention import Attention
from ..utils.memory import available_memory, kv_block_bytes, num_blocks_that_fit
from ..utils.parallel_state import TensorParallelGroup
from .sequence import Sequence

CPU_POOL_SEQS = 64  # on a CPU the pool is sized for this many sequences at most,
CPU_POOL_SHARE = 0.25  # and takes at most this share of the free memory


def choose_num_blocks(
    config: Config, layers: list[Attention], group: TensorParallelGroup, step_bytes: int
) -> int:
    """Size of the pool: what was asked for if it fits; else what the memory has room for.

    Args:
        config: `num_kvcache_blocks` is -1 if it was left open.
        layers: those that need a cache.
        group: the ranks, which all use the same block ids: the one with the least room decides.
        step_bytes: what a step takes beside weights and cache.

    Raises:
        MemoryError: it does not fit, or not even one block does; says which option to change.
    """
    asked, on_gpu = config.num_kvcache_blocks, config.device == "cuda"
    if on_gpu:
        free, total = torch.cuda.mem_get_info(group.rank)
    else:  # only free memory counts, and the ranks share it
        free = total = available_memory() // group.size
    in_use, share = total - free, config.gpu_memory_utilization if on_gpu else CPU_POOL_SHARE
    share = share if asked == -1 else 1.0
    shape = len(layers), config.kvcache_block_size, layers[0].num_kv_heads, layers[0].head_dim
    block_bytes = kv_block_bytes(*shape, config.dtype.itemsize)
    fits = group.minimum(num_blocks_that_fit(total, in_use, step_bytes, share, block_bytes))
    if fits < max(asked, 1):
        raise MemoryError(
            f"no room for a KV cache of {max(asked, 1)} block(s) of {block_bytes / 1e6:,.2f} MB: "
            f"{100 * share:.4g} % of {total / 1e9:.2f} GB may be used, {in_use / 1e9:.2f} GB are "
            f"in use, and a step takes {step_bytes / 1e9:.2f} GB; lower num_kvcache_blocks (if "
            "it was given), kvcache_block_size or max_num_batched_tokens, raise "
            "gpu_memory_utilization (on a GPU), or free the device"
        )
    if not on_gpu:
        num_tokens = min(config.max_num_seqs, CPU_POOL_SEQS) * config.max_model_len
        fits = min(fits, -(-num_tokens // config.kvcache_block_size))
    return fits if asked == -1 else asked


def largest_prefill(config: Config) -> list[Sequence]:
    """The sequences of a step that takes as much memory as any."""
    max_len = min(config.max_num_batched_tokens, config.max_model_len)
    num_seqs = min(config.max_num_batched_tokens // max_len, config.max_num_seqs)
    seqs = [Sequence([0] * max_len, block_size=config.kvcache_block_size) for _ in range(num_seqs)]
    for seq in seqs:
        seq.num_scheduled_tokens = max_len
    return seqs


@contextmanager
def out_of_memory_explained() -> Iterator[None]:
    """Raise a `MemoryError` that says what to change, where torch runs out of memory."""
    try:
        yield
    except RuntimeError as error:
        on_cpu = "can't allocate memory" in str(error)
        if not on_cpu and not isinstance(error, torch.OutOfMemoryError):
            raise
        raise MemoryError(
            f"out of {'' if on_cpu else 'GPU '}memory at start; use a smaller model, free the "
            "memory, or lower max_num_batched_tokens, max_num_seqs or gpu_memory_utilization: "
            f"{error}"
        ) from error
