"""Small operations of a decoder layer, each fused into one launch.

A decode step moves few bytes through these, so what they cost is mostly their number: every launch takes a few
microseconds, and a layer has many. The plain modules compute the same in several steps; compare
vllm/csrc/layernorm_kernels.cu and vllm/csrc/fused_qknorm_rope_kernel.cu.
"""

import torch
import triton
import triton.language as tl


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
):
    """One row: add the residual, keep the sum, normalize it."""
    row = tl.program_id(0).to(tl.int64) * HIDDEN_SIZE
    offsets = tl.arange(0, BLOCK)
    mask = offsets < HIDDEN_SIZE
    x = tl.load(x_ptr + row + offsets, mask=mask, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        x += tl.load(residual_ptr + row + offsets, mask=mask, other=0.0).to(tl.float32)
        # The sum is rounded to the residual's dtype before it is normalized, as the plain module does.
        x = x.to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + row + offsets, x, mask=mask)
        x = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x) / HIDDEN_SIZE + eps)
    weight = tl.load(weight_ptr + offsets, mask=mask).to(tl.float32)
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
    )
    return output, total


@triton.jit
def silu_and_mul_kernel(x_ptr, output_ptr, SIZE: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """BLOCK features of one row."""
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < SIZE
    gate = tl.load(x_ptr + row * 2 * SIZE + offsets, mask=mask).to(tl.float32)
    up = tl.load(x_ptr + row * 2 * SIZE + SIZE + offsets, mask=mask).to(tl.float32)
    tl.store(output_ptr + row * SIZE + offsets, gate * tl.sigmoid(gate) * up, mask=mask)


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """[num_tokens, 2 * size] -> [num_tokens, size]: SiLU of the first half times the second."""
    num_tokens, size = x.shape[0], x.shape[1] // 2
    output = torch.empty(num_tokens, size, dtype=x.dtype, device=x.device)
    block = min(1024, triton.next_power_of_2(size))
    silu_and_mul_kernel[(num_tokens, triton.cdiv(size, block))](x, output, SIZE=size, BLOCK=block, num_warps=4)
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
    k_cache_ptr,
    v_cache_ptr,
    eps,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """All heads of one token: the query heads come first, then the key heads, then the value heads.

    A head is held as its two halves, which the rotation pairs up.
    """
    token = tl.program_id(0).to(tl.int64)
    HALF: tl.constexpr = HEAD_DIM // 2
    head, first = tl.arange(0, HEADS)[:, None], tl.arange(0, HALF)[None, :]
    is_query = head < NUM_HEADS
    is_key = (head >= NUM_HEADS) & (head < NUM_HEADS + NUM_KV_HEADS)
    is_value = (head >= NUM_HEADS + NUM_KV_HEADS) & (head < NUM_HEADS + 2 * NUM_KV_HEADS)
    source = qkv_ptr + (token * (NUM_HEADS + 2 * NUM_KV_HEADS) + head) * HEAD_DIM + first
    is_head = is_query | is_key | is_value
    v1, v2 = tl.load(source, mask=is_head, other=0.0), tl.load(source + HALF, mask=is_head, other=0.0)
    x1, x2 = v1.to(tl.float32), v2.to(tl.float32)
    scale = tl.rsqrt((tl.sum(x1 * x1, axis=1) + tl.sum(x2 * x2, axis=1)) / HEAD_DIM + eps)[:, None]
    w1 = tl.where(is_query, tl.load(q_weight_ptr + first), tl.load(k_weight_ptr + first)).to(tl.float32)
    w2 = tl.where(is_query, tl.load(q_weight_ptr + HALF + first), tl.load(k_weight_ptr + HALF + first)).to(tl.float32)
    # Rounded between the two steps, as the plain modules do.
    x1, x2 = (x1 * scale * w1).to(v1.dtype).to(tl.float32), (x2 * scale * w2).to(v1.dtype).to(tl.float32)
    angles = cos_sin_ptr + tl.load(positions_ptr + token) * HEAD_DIM
    cos, sin = tl.load(angles + first), tl.load(angles + HALF + first)
    y1, y2 = x1 * cos - x2 * sin, x2 * cos + x1 * sin
    slot = tl.load(slot_mapping_ptr + token).to(tl.int64)
    target = q_ptr + (token * NUM_HEADS + head) * HEAD_DIM + first
    tl.store(target, y1, mask=is_query)
    tl.store(target + HALF, y2, mask=is_query)
    target = k_ptr + (token * NUM_KV_HEADS + head - NUM_HEADS) * HEAD_DIM + first
    tl.store(target, y1, mask=is_key)
    tl.store(target + HALF, y2, mask=is_key)
    target = k_cache_ptr + (slot * NUM_KV_HEADS + head - NUM_HEADS) * HEAD_DIM + first
    tl.store(target, y1, mask=is_key)
    tl.store(target + HALF, y2, mask=is_key)
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
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalize and rotate queries and keys, and store keys and values in the paged cache.

    Args:
        qkv: [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim], contiguous.
        q_weight, k_weight: [head_dim].
        cos_sin: [max_position, 1, head_dim] float32, cosines then sines.
        positions, slot_mapping: [num_tokens] int64.
        k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim], contiguous.

    Returns:
        q [num_tokens, num_heads, head_dim] and k [num_tokens, num_kv_heads, head_dim].
    """
    num_tokens = len(qkv)
    num_kv_heads, head_dim = k_cache.shape[2:]
    num_heads = qkv.shape[1] // head_dim - 2 * num_kv_heads
    q = torch.empty(num_tokens, num_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    k = torch.empty(num_tokens, num_kv_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    qk_norm_rope_store_kernel[(num_tokens,)](
        qkv,
        q_weight,
        k_weight,
        cos_sin,
        positions,
        slot_mapping,
        q,
        k,
        k_cache,
        v_cache,
        eps,
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        HEADS=triton.next_power_of_2(num_heads + 2 * num_kv_heads),
        HEAD_DIM=head_dim,
        num_warps=4,
    )
    return q, k


@triton.jit
def hash32(x):  # type: ignore[no-untyped-def]
    """Finalizer of MurmurHash3 on uint32, as `nanovllm.layers.sampler.hash32`."""
    x = (x ^ (x >> 16)) * 0x85EBCA6B
    x = (x ^ (x >> 13)) * 0xC2B2AE35
    return x ^ (x >> 16)


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
):
    """Best token of BLOCK tokens of one row: by logit if the row is greedy, else by logit plus Gumbel noise."""
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
        uniform = ((bits >> 9).to(tl.float32) + 0.5) * (1.0 / 8388608.0)
        scores = scores / temperature - tl.log(-tl.log(uniform))
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
        num_warps=8,
    )
    return best_token.gather(1, best_score.argmax(dim=1, keepdim=True)).squeeze(1)
