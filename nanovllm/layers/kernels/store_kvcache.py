"""Writing keys and values into the paged KV cache, one Triton program a token."""

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def store_kvcache_kernel(  # type: ignore[no-untyped-def]
    key_ptr,
    value_ptr,
    k_cache_ptr,
    v_cache_ptr,
    slot_mapping_ptr,
    key_stride,
    value_stride,
    ROW_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Copy a row of key and of value, num_kv_heads * head_dim numbers each, to its slot."""
    token = tl.program_id(0)
    # 64-bit: slot * row size passes 2^31 in a large cache.
    slot = tl.load(slot_mapping_ptr + token).to(tl.int64)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < ROW_SIZE
    key = tl.load(key_ptr + token.to(tl.int64) * key_stride + offsets, mask=mask)
    value = tl.load(value_ptr + token.to(tl.int64) * value_stride + offsets, mask=mask)
    tl.store(k_cache_ptr + slot * ROW_SIZE + offsets, key, mask=mask)
    tl.store(v_cache_ptr + slot * ROW_SIZE + offsets, value, mask=mask)


def store_kvcache_triton(
    key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor
) -> None:
    """Same as `nanovllm.layers.attention.store_kvcache`, in one kernel launch.

    Args:
        key, value: [num_tokens, num_kv_heads, head_dim]; heads contiguous, tokens may be strided.
        k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim], contiguous.
        slot_mapping: [num_tokens] int64.

    Raises:
        ValueError: a row of key or value, or a cache, is not contiguous.
    """
    num_tokens, num_kv_heads, head_dim = key.shape
    for name, tensor in (("key", key), ("value", value)):
        if tensor.stride(-1) != 1 or tensor.stride(1) != head_dim:
            raise ValueError(f"{name} must have contiguous heads, got strides {tensor.stride()}")
    if not k_cache.is_contiguous() or not v_cache.is_contiguous():
        raise ValueError("k_cache and v_cache must be contiguous")
    row_size = num_kv_heads * head_dim
    store_kvcache_kernel[(num_tokens,)](
        key,
        value,
        k_cache,
        v_cache,
        slot_mapping,
        key.stride(0),
        value.stride(0),
        ROW_SIZE=row_size,
        BLOCK=triton.next_power_of_2(row_size),
    )
