"""One kernel from the QKV projection to the KV cache: split, QK-norm, rotation, store.

Compare vllm/csrc/fused_qknorm_rope_kernel.cu.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from ..layers.kernels.overlap import overlap_options, start_next_kernel, wait_for_previous_kernel
from ..models.qwen3 import Qwen3Attention
from ..utils.context import get_context
from ..utils.swap import swap
from .norm_factor import rms_norm_factor, stream_arguments


class FusedQKV(Qwen3Attention):
    """See `Qwen3Attention`."""

    def attend(self, positions: Tensor, qkv: Tensor, stream: Tensor | None = None) -> Tensor:
        """In one launch and the attention; `stream`: see `qk_norm_rope_store`."""
        if not self.attn.k_cache.numel():  # while the memory is measured
            return super().attend(positions, qkv)
        context = get_context()
        q, k, v = qk_norm_rope_store(
            qkv,
            self.q_norm.weight,
            self.k_norm.weight,
            self.q_norm.eps,
            self.rotary_emb.cos_sin_cache,
            positions,
            context.slot_mapping,
            self.attn.k_cache,
            self.attn.v_cache,
            stream,
        )
        return self.attn.attend(q, k, v, context).flatten(1)


def install(model: nn.Module, sampler: nn.Module) -> None:
    """Use it in all layers."""
    swap(model, Qwen3Attention, FusedQKV)


@triton.jit
def qk_norm_rope_store_kernel(  # type: ignore[no-untyped-def]
    qkv_ptr,
    q_weight_ptr,
    k_weight_ptr,
    cos_sin_ptr,
    positions_ptr,
    slot_mapping_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    k_cache_ptr,
    v_cache_ptr,
    stream_ptr,
    eps,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HIDDEN_SIZE: tl.constexpr,
    STREAM_BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """All heads of one token: the query heads come first, then the key heads, then the value heads.

    A head is held as its two halves, which the rotation pairs up.
    """
    start_next_kernel(OVERLAP)
    token = tl.program_id(0).to(tl.int64)
    HALF: tl.constexpr = HEAD_DIM // 2
    head, first = tl.arange(0, HEADS)[:, None], tl.arange(0, HALF)[None, :]
    is_query = head < NUM_HEADS
    is_key = (head >= NUM_HEADS) & (head < NUM_HEADS + NUM_KV_HEADS)
    is_value = (head >= NUM_HEADS + NUM_KV_HEADS) & (head < NUM_HEADS + 2 * NUM_KV_HEADS)
    # What the kernel before does not write is read while it still runs.
    slot = tl.load(slot_mapping_ptr + token).to(tl.int64)
    angles = cos_sin_ptr + tl.load(positions_ptr + token) * HEAD_DIM
    cos, sin = tl.load(angles + first), tl.load(angles + HALF + first)
    q_weight, k_weight = q_weight_ptr + first, k_weight_ptr + first
    w1 = tl.where(is_query, tl.load(q_weight), tl.load(k_weight)).to(tl.float32)
    w2 = tl.where(is_query, tl.load(q_weight + HALF), tl.load(k_weight + HALF)).to(tl.float32)
    wait_for_previous_kernel(OVERLAP)
    source = qkv_ptr + (token * (NUM_HEADS + 2 * NUM_KV_HEADS) + head) * HEAD_DIM + first
    is_head = is_query | is_key | is_value
    v1 = tl.load(source, mask=is_head, other=0.0)
    v2 = tl.load(source + HALF, mask=is_head, other=0.0)
    dtype = v1.dtype
    factor = rms_norm_factor(stream_ptr, token, eps, HIDDEN_SIZE, STREAM_BLOCK)
    x1, x2 = v1.to(tl.float32) * factor, v2.to(tl.float32) * factor
    v1, v2 = x1, x2
    scale = tl.rsqrt((tl.sum(x1 * x1, axis=1) + tl.sum(x2 * x2, axis=1)) / HEAD_DIM + eps)[:, None]
    # Rounded between the two steps, as the plain modules do.
    x1, x2 = (x1 * scale * w1).to(dtype).to(tl.float32), (x2 * scale * w2).to(dtype).to(tl.float32)
    y1, y2 = x1 * cos - x2 * sin, x2 * cos + x1 * sin
    target = q_ptr + (token * NUM_HEADS + head) * HEAD_DIM + first
    tl.store(target, y1, mask=is_query)
    tl.store(target + HALF, y2, mask=is_query)
    target = k_ptr + (token * NUM_KV_HEADS + head - NUM_HEADS) * HEAD_DIM + first
    tl.store(target, y1, mask=is_key)
    tl.store(target + HALF, y2, mask=is_key)
    target = k_cache_ptr + (slot * NUM_KV_HEADS + head - NUM_HEADS) * HEAD_DIM + first
    tl.store(target, y1, mask=is_key)
    tl.store(target + HALF, y2, mask=is_key)
    FIRST_VALUE: tl.constexpr = NUM_HEADS + NUM_KV_HEADS
    if HIDDEN_SIZE > 0:  # else the values are what they were
        target = v_ptr + (token * NUM_KV_HEADS + head - FIRST_VALUE) * HEAD_DIM + first
        tl.store(target, v1, mask=is_value)
        tl.store(target + HALF, v2, mask=is_value)
    target = v_cache_ptr + (slot * NUM_KV_HEADS + head - FIRST_VALUE) * HEAD_DIM + first
    tl.store(target, v1, mask=is_value)
    tl.store(target + HALF, v2, mask=is_value)


def qk_norm_rope_store(
    qkv: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    eps: float,
    cos_sin: Tensor,
    positions: Tensor,
    slot_mapping: Tensor | None,
    k_cache: Tensor,
    v_cache: Tensor,
    stream: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalize and rotate queries and keys, and store keys and values in the paged cache.

    Args:
        qkv: [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim], contiguous.
        q_weight, k_weight: [head_dim].
        cos_sin: [max_position, 1, head_dim] float32, cosines then sines.
        positions, slot_mapping: [num_tokens] int64.
        k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim], contiguous.
        stream: [num_tokens, hidden_size] if `qkv` was projected from it without the RMSNorm before
            (whose eps is the same); this is made up for.

    Returns:
        q [num_tokens, num_heads, head_dim], and k and v [num_tokens, num_kv_heads, head_dim].
    """
    num_tokens = len(qkv)
    num_kv_heads, head_dim = k_cache.shape[2:]
    num_heads = qkv.shape[1] // head_dim - 2 * num_kv_heads
    q = torch.empty(num_tokens, num_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    k = torch.empty(num_tokens, num_kv_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    v = qkv.unflatten(1, (-1, head_dim)).narrow(1, num_heads + num_kv_heads, num_kv_heads)
    if stream is not None:  # they have to be normalized, too
        v = torch.empty_like(k)
    qk_norm_rope_store_kernel[(num_tokens,)](
        qkv_ptr=qkv,
        q_weight_ptr=q_weight,
        k_weight_ptr=k_weight,
        cos_sin_ptr=cos_sin,
        positions_ptr=positions,
        slot_mapping_ptr=slot_mapping,
        q_ptr=q,
        k_ptr=k,
        v_ptr=v,
        k_cache_ptr=k_cache,
        v_cache_ptr=v_cache,
        eps=eps,
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        HEADS=triton.next_power_of_2(num_heads + 2 * num_kv_heads),
        HEAD_DIM=head_dim,
        num_warps=4,
        **stream_arguments(stream, qkv),
        **overlap_options(qkv.device),
    )
    return q, k, v
