"""Small operations of a decoder layer, each fused into one launch.

A decode step moves few bytes through these, so what they cost is mostly their number: every launch takes a few
microseconds, and a layer has many. The plain modules compute the same in several steps; compare
vllm/csrc/layernorm_kernels.cu and vllm/csrc/fused_qknorm_rope_kernel.cu.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from .overlap import overlap_options, start_next_kernel, wait_for_previous_kernel


@triton.jit
def add_rms_norm_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    residual_ptr,
    weight_ptr,
    output_ptr,
    sum_ptr,
    eps,
    HIDDEN_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """One row: add the residual, keep the sum, normalize it."""
    start_next_kernel(OVERLAP)
    row = tl.program_id(0).to(tl.int64) * HIDDEN_SIZE
    offsets = tl.arange(0, BLOCK)
    mask = offsets < HIDDEN_SIZE
    weight = tl.load(weight_ptr + offsets, mask=mask).to(tl.float32)
    wait_for_previous_kernel(OVERLAP)
    x = tl.load(x_ptr + row + offsets, mask=mask, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        x += tl.load(residual_ptr + row + offsets, mask=mask, other=0.0).to(tl.float32)
        # The sum is rounded to the residual's dtype before it is normalized, as the plain module does.
        x = x.to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + row + offsets, x, mask=mask)
        x = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x) / HIDDEN_SIZE + eps)
    tl.store(output_ptr + row + offsets, x * scale * weight, mask=mask)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalize the rows of `x`, or of `x + residual`.

    Args:
        x, residual: [num_tokens, hidden_size], contiguous.
        weight: [hidden_size].

    Returns:
        (normalized, sum); the sum is `x` itself if there is no residual.
    """
    x = x.contiguous()
    output = torch.empty_like(x)
    total = x if residual is None else torch.empty_like(x)
    hidden_size = x.shape[-1]
    add_rms_norm_kernel[(x.numel() // hidden_size,)](
        x,
        x if residual is None else residual,
        weight,
        output,
        total,
        eps,
        HIDDEN_SIZE=hidden_size,
        BLOCK=triton.next_power_of_2(hidden_size),
        HAS_RESIDUAL=residual is not None,
        num_warps=4,
        **overlap_options(x.device),
    )
    return output, total


@triton.jit
def rms_norm_factor(stream_ptr, row, eps, HIDDEN_SIZE: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """What RMSNorm multiplies a row of the residual stream with, beside its weight; 1 if there is no stream."""
    factor = 1.0
    if HIDDEN_SIZE > 0:
        offsets = tl.arange(0, BLOCK)
        x = tl.load(stream_ptr + row * HIDDEN_SIZE + offsets, mask=offsets < HIDDEN_SIZE, other=0.0).to(tl.float32)
        factor = tl.rsqrt(tl.sum(x * x) / HIDDEN_SIZE + eps)
    return factor


def stream_arguments(stream: torch.Tensor | None, default: torch.Tensor) -> dict[str, Any]:
    """The arguments of a kernel that may have to normalize what was projected from `stream`."""
    hidden_size = 0 if stream is None else stream.shape[1]
    return {
        "stream_ptr": default if stream is None else stream,
        "HIDDEN_SIZE": hidden_size,
        "STREAM_BLOCK": triton.next_power_of_2(max(hidden_size, 1)),
    }


@triton.jit
def silu_and_mul_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    stream_ptr,
    output_ptr,
    eps,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    HIDDEN_SIZE: tl.constexpr,
    STREAM_BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """BLOCK features of one row."""
    start_next_kernel(OVERLAP)
    wait_for_previous_kernel(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < SIZE
    gate = tl.load(x_ptr + row * 2 * SIZE + offsets, mask=mask).to(tl.float32)
    up = tl.load(x_ptr + row * 2 * SIZE + SIZE + offsets, mask=mask).to(tl.float32)
    factor = rms_norm_factor(stream_ptr, row, eps, HIDDEN_SIZE, STREAM_BLOCK)
    gate, up = gate * factor, up * factor
    tl.store(output_ptr + row * SIZE + offsets, gate * tl.sigmoid(gate) * up, mask=mask)


def silu_and_mul(x: torch.Tensor, stream: torch.Tensor | None = None, eps: float = 0.0) -> torch.Tensor:
    """[num_tokens, 2 * size] -> [num_tokens, size]: SiLU of the first half times the second.

    Args:
        stream: [num_tokens, hidden_size] if `x` was projected from it without the RMSNorm before; this is made up for.
        eps: of that norm.
    """
    num_tokens, size = x.shape[0], x.shape[1] // 2
    output = torch.empty(num_tokens, size, dtype=x.dtype, device=x.device)
    block = min(1024, triton.next_power_of_2(size))
    silu_and_mul_kernel[(num_tokens, triton.cdiv(size, block))](
        x_ptr=x,
        output_ptr=output,
        eps=eps,
        SIZE=size,
        BLOCK=block,
        num_warps=4,
        **stream_arguments(stream, x),
        **overlap_options(x.device),
    )
    return output


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
    w1 = tl.where(is_query, tl.load(q_weight_ptr + first), tl.load(k_weight_ptr + first)).to(tl.float32)
    w2 = tl.where(is_query, tl.load(q_weight_ptr + HALF + first), tl.load(k_weight_ptr + HALF + first)).to(tl.float32)
    wait_for_previous_kernel(OVERLAP)
    source = qkv_ptr + (token * (NUM_HEADS + 2 * NUM_KV_HEADS) + head) * HEAD_DIM + first
    is_head = is_query | is_key | is_value
    v1, v2 = tl.load(source, mask=is_head, other=0.0), tl.load(source + HALF, mask=is_head, other=0.0)
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
    if HIDDEN_SIZE > 0:  # else the values are what they were
        target = v_ptr + (token * NUM_KV_HEADS + head - NUM_HEADS - NUM_KV_HEADS) * HEAD_DIM + first
        tl.store(target, v1, mask=is_value)
        tl.store(target + HALF, v2, mask=is_value)
    target = v_cache_ptr + (slot * NUM_KV_HEADS + head - NUM_HEADS - NUM_KV_HEADS) * HEAD_DIM + first
    tl.store(target, v1, mask=is_value)
    tl.store(target + HALF, v2, mask=is_value)


def qk_norm_rope_store(
    qkv: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor | None,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    stream: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Normalize and rotate queries and keys, and store keys and values in the paged cache.

    Args:
        qkv: [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim], contiguous.
        q_weight, k_weight: [head_dim].
        cos_sin: [max_position, 1, head_dim] float32, cosines then sines.
        positions, slot_mapping: [num_tokens] int64.
        k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim], contiguous.
        stream: [num_tokens, hidden_size] if `qkv` was projected from it without the RMSNorm before (whose eps is the
            same); this is made up for.

    Returns:
        q [num_tokens, num_heads, head_dim], and k and v [num_tokens, num_kv_heads, head_dim].
    """
    num_tokens = len(qkv)
    num_kv_heads, head_dim = k_cache.shape[2:]
    num_heads = qkv.shape[1] // head_dim - 2 * num_kv_heads
    q = torch.empty(num_tokens, num_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    k = torch.empty(num_tokens, num_kv_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    v = torch.empty_like(k) if stream is not None else qkv.unflatten(1, (-1, head_dim))[:, -num_kv_heads:]
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


@triton.jit
def hash32(x):  # type: ignore[no-untyped-def]
    """Finalizer of MurmurHash3 on uint32, as `nanovllm.layers.sampler.hash32`."""
    x = (x ^ (x >> 16)) * 0x85EBCA6B
    x = (x ^ (x >> 13)) * 0xC2B2AE35
    return x ^ (x >> 16)


@triton.jit
def log2_approx(x):  # type: ignore[no-untyped-def]
    """The hardware's logarithm to the base 2, with an error of up to 2^-22."""
    return tl.inline_asm_elementwise("lg2.approx.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)


@triton.jit
def gumbel_noise(bits, IS_INTERPRETED: tl.constexpr):  # type: ignore[no-untyped-def]
    """-log(-log(u)) of the uniform number u in (0, 1) that the upper 23 of 32 random bits make."""
    # The bits become the fraction of a number in [1, 2), which is cheaper than converting them.
    uniform = ((bits >> 9) | 0x3F800000).to(tl.float32, bitcast=True) - (1.0 - 1.0 / 16777216.0)
    if IS_INTERPRETED:
        return -tl.log(-tl.log(uniform))
    # Near one, where the largest noise comes from, the approximation is too coarse, and a series takes its place.
    rest = 1.0 - uniform
    series = rest * (1.0 + rest * (1 / 2 + rest * (1 / 3 + rest * (1 / 4 + rest * (1 / 5)))))
    exponential = tl.where(rest < 0.0625, series, -0.6931471805599453 * log2_approx(uniform))
    return -0.6931471805599453 * log2_approx(exponential)


@triton.jit
def sample_chunk_kernel(  # type: ignore[no-untyped-def]
    logits_ptr,
    temperatures_ptr,
    seeds_ptr,
    positions_ptr,
    best_score_ptr,
    best_token_ptr,
    logits_stride,
    VOCAB_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_INTERPRETED: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Best token of BLOCK tokens of one row: by logit if the row is greedy, else by logit plus Gumbel noise."""
    start_next_kernel(OVERLAP)
    wait_for_previous_kernel(OVERLAP)
    row, chunk = tl.program_id(0), tl.program_id(1)
    token_ids = chunk * BLOCK + tl.arange(0, BLOCK)
    mask = token_ids < VOCAB_SIZE
    scores = tl.load(logits_ptr + row.to(tl.int64) * logits_stride + token_ids, mask=mask, other=float("-inf"))
    scores = scores.to(tl.float32)
    temperature = tl.load(temperatures_ptr + row)
    if temperature > 0:
        seed, position = tl.load(seeds_ptr + row), tl.load(positions_ptr + row)
        low, high = seed.to(tl.uint32), ((seed >> 32) + 0x51ED27).to(tl.uint32)
        key = hash32(hash32(hash32(low) ^ hash32(high)) ^ hash32((position + 0x9E3779B9).to(tl.uint32)))
        bits = hash32(key ^ (token_ids.to(tl.uint32) * 0x9E3779B1))
        scores = scores * (1.0 / temperature) + gumbel_noise(bits, IS_INTERPRETED)
    scores = tl.where(mask, scores, float("-inf"))
    best = tl.argmax(scores, axis=0)
    tl.store(best_score_ptr + row * tl.num_programs(1) + chunk, tl.max(scores, axis=0))
    tl.store(best_token_ptr + row * tl.num_programs(1) + chunk, (chunk * BLOCK + best).to(tl.int64))


def sample(
    logits: torch.Tensor, temperatures: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """Greedy or temperature sampling without filters, in one pass over the logits.

    Args:
        logits: [num_seqs, vocab_size].
        temperatures: [num_seqs] float32, 0 for greedy.
        seeds, positions: [num_seqs] int64.

    Returns:
        [num_seqs] int64 token ids: those of `nanovllm.layers.sampler.Sampler`.
    """
    num_seqs, vocab_size = logits.shape
    block = min(4096, triton.next_power_of_2(vocab_size))
    num_chunks = triton.cdiv(vocab_size, block)
    best_score = torch.empty(num_seqs, num_chunks, dtype=torch.float32, device=logits.device)
    best_token = torch.empty(num_seqs, num_chunks, dtype=torch.int64, device=logits.device)
    sample_chunk_kernel[(num_seqs, num_chunks)](
        logits,
        temperatures,
        seeds,
        positions,
        best_score,
        best_token,
        logits.stride(0),
        VOCAB_SIZE=vocab_size,
        BLOCK=block,
        IS_INTERPRETED=triton.knobs.runtime.interpret,
        num_warps=4,
        **overlap_options(logits.device),
    )
    return best_token.gather(1, best_score.argmax(dim=1, keepdim=True)).squeeze(1)
