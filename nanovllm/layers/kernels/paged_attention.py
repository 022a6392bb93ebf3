"""Attention over the paged KV cache in Triton: one query a sequence (decode), or many (prefill).

Both use the online softmax of FlashAttention (Dao et al., 2022): keys are read tile by tile, and a
running maximum and sum make the result of the tiles so far exact. Decode splits long contexts into
chunks that run in parallel, and merges them (Flash-Decoding, Dao et al., 2023).

Exponentials are taken to the base 2, which the hardware has; the scale of the scores carries the
factor log2(e).
"""

import math
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...tiles import decode_tile, prefill_tile, shared_memory
from ...utils.context import Context
from .overlap import overlap_options, start_next_kernel, wait_for_previous_kernel

# Tokens of a sequence that one decode program reads: the fewer sequences, the shorter, to occupy
# the whole GPU. Pairs of (up to this many programs a chunk, chunk size), as measured on an H200.
CHUNK_SIZES = ((64, 128), (128, 256), (512, 512), (2**31, 1024))
LOG2_E = math.log2(math.e)


@triton.jit
def cache_rows(  # type: ignore[no-untyped-def]
    block_table_ptr, positions, num_tokens, BLOCK_SIZE: tl.constexpr
):
    """Rows of the flat cache [num_blocks * block_size, ...] that hold the tokens at `positions`."""
    block_ids = tl.load(
        block_table_ptr + positions // BLOCK_SIZE, mask=positions < num_tokens, other=0
    )
    return block_ids.to(tl.int64) * BLOCK_SIZE + positions % BLOCK_SIZE


@triton.jit
def online_softmax_step(  # type: ignore[no-untyped-def]
    scores, values, maximum, total, output, DOT_DTYPE: tl.constexpr
):
    """Take one more tile of keys into the running result.

    scores [rows, tile] (base-2 logits, -inf where masked), values [tile, head_dim]; maximum and
    total [rows], output [rows, head_dim] are the running maximum, sum of exponentials, and weighted
    sum of values.
    """
    new_maximum = tl.maximum(maximum, tl.max(scores, axis=1))
    # A row that has seen only masked keys has the maximum -inf, and -inf - -inf would be NaN.
    shift = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
    weights = tl.exp2(scores - shift[:, None])
    decay = tl.exp2(maximum - shift)
    total = total * decay + tl.sum(weights, axis=1)
    output = output * decay[:, None] + tl.dot(
        weights.to(DOT_DTYPE), values.to(DOT_DTYPE), input_precision="ieee"
    )
    return new_maximum, total, output


@triton.jit
def merge_chunks(  # type: ignore[no-untyped-def]
    partial_ptr,
    lse_ptr,
    first,
    num_chunks,
    num_heads,
    is_head,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """[ROWS, HEAD_DIM], the attention to all chunks: their outputs, weighted.

    The weights are their sums of exponentials. first [ROWS]: where the heads' outputs for the first
    chunk are; those for the next one are num_heads further.
    """
    features = tl.arange(0, HEAD_DIM)
    maximum = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    output = tl.zeros([ROWS, HEAD_DIM], tl.float32)
    for i in range(0, num_chunks):
        row = first + i * num_heads
        offsets = row[:, None] * HEAD_DIM + features[None, :]
        # Past the L1 cache, which does not see what other programs have written.
        lse = tl.load(lse_ptr + row, mask=is_head, other=0.0, cache_modifier=".cg")
        part = tl.load(
            partial_ptr + offsets, mask=is_head[:, None], other=0.0, cache_modifier=".cg"
        )
        new_maximum = tl.maximum(maximum, lse)
        decay, weight = tl.exp2(maximum - new_maximum), tl.exp2(lse - new_maximum)
        total = total * decay + weight
        output = output * decay[:, None] + weight[:, None] * part
        maximum = new_maximum
    return output / total[:, None]


@triton.jit
def paged_decode_kernel(  # type: ignore[no-untyped-def]
    q_ptr,
    k_cache_ptr,
    v_cache_ptr,
    output_ptr,
    partial_ptr,
    lse_ptr,
    num_done_ptr,
    block_tables_ptr,
    context_lens_ptr,
    scale,
    q_stride,
    table_stride,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
    DOT_DTYPE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """One chunk of one sequence for one KV head, i.e. for the GROUP query heads that share it.

    The group is padded to ROWS rows, the smallest that a matrix unit takes; reading the keys
    dominates anyway. The program that is the last of its sequence and head to be done merges the
    chunks.
    """
    start_next_kernel(OVERLAP)
    wait_for_previous_kernel(OVERLAP)
    # The heads of a token lie side by side in memory, so they are read at the same time.
    kv_head, seq, chunk = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    context_len = tl.load(context_lens_ptr + seq)
    start = chunk * CHUNK
    if start >= context_len:
        return
    end = tl.minimum(start + CHUNK, context_len)
    rows, features = tl.arange(0, ROWS), tl.arange(0, HEAD_DIM)
    head = kv_head * GROUP + rows
    is_head = rows < GROUP
    q_offsets = seq.to(tl.int64) * q_stride + head[:, None] * HEAD_DIM + features[None, :]
    q = tl.load(q_ptr + q_offsets, mask=is_head[:, None], other=0.0).to(tl.float32) * scale
    maximum = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    output = tl.zeros([ROWS, HEAD_DIM], tl.float32)
    table = block_tables_ptr + seq.to(tl.int64) * table_stride
    for tile_start in range(start, end, TILE):
        positions = tile_start + tl.arange(0, TILE)
        is_token = positions < end
        row = cache_rows(table, positions, end, BLOCK_SIZE) * NUM_KV_HEADS + kv_head
        offsets = row[:, None] * HEAD_DIM + features[None, :]
        k = tl.load(k_cache_ptr + offsets, mask=is_token[:, None], other=0.0)
        v = tl.load(v_cache_ptr + offsets, mask=is_token[:, None], other=0.0)
        scores = tl.dot(q.to(DOT_DTYPE), tl.trans(k.to(DOT_DTYPE)), input_precision="ieee")
        scores = tl.where(is_token[None, :], scores, float("-inf"))
        maximum, total, output = online_softmax_step(scores, v, maximum, total, output, DOT_DTYPE)
    output = output / total[:, None]
    num_heads = NUM_KV_HEADS * GROUP
    if context_len > CHUNK:
        first = seq.to(tl.int64) * tl.num_programs(2) * num_heads + head
        row = first + chunk * num_heads
        tl.store(
            partial_ptr + row[:, None] * HEAD_DIM + features[None, :], output, mask=is_head[:, None]
        )
        tl.store(lse_ptr + row, maximum + tl.log2(total), mask=is_head)
        tl.debug_barrier()  # the stores of all threads come before the count of one
        num_chunks = tl.cdiv(context_len, CHUNK)
        counter = num_done_ptr + seq * NUM_KV_HEADS + kv_head
        if tl.atomic_add(counter, 1) < num_chunks - 1:
            return
        tl.store(counter, 0)  # ready for the next launch
        output = merge_chunks(
            partial_ptr, lse_ptr, first, num_chunks, num_heads, is_head, ROWS, HEAD_DIM
        )
    out_offsets = (seq.to(tl.int64) * num_heads + head[:, None]) * HEAD_DIM + features[None, :]
    tl.store(output_ptr + out_offsets, output, mask=is_head[:, None])


@triton.jit
def paged_prefill_kernel(  # type: ignore[no-untyped-def]
    q_ptr,
    k_ptr,
    v_ptr,
    output_ptr,
    cu_seqlens_q_ptr,
    cu_seqlens_k_ptr,
    block_tables_ptr,
    scale,
    q_stride,
    k_stride,
    v_stride,
    table_stride,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    DOT_DTYPE: tl.constexpr,
    PAGED: tl.constexpr,
):
    """ROWS consecutive queries of one sequence and head, each against all keys up to its own."""
    first_row, seq, head = tl.program_id(0) * ROWS, tl.program_id(1), tl.program_id(2)
    q_start, q_end = tl.load(cu_seqlens_q_ptr + seq), tl.load(cu_seqlens_q_ptr + seq + 1)
    k_start, k_end = tl.load(cu_seqlens_k_ptr + seq), tl.load(cu_seqlens_k_ptr + seq + 1)
    num_queries, num_keys = q_end - q_start, k_end - k_start
    if first_row >= num_queries:
        return
    kv_head = head // GROUP
    rows, features = first_row + tl.arange(0, ROWS), tl.arange(0, HEAD_DIM)
    is_query = rows < num_queries
    # The queries are the last tokens of the sequence.
    query_positions = num_keys - num_queries + rows
    q_offsets = (
        (q_start + rows).to(tl.int64)[:, None] * q_stride + head * HEAD_DIM + features[None, :]
    )
    q = tl.load(q_ptr + q_offsets, mask=is_query[:, None], other=0.0)
    maximum = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    output = tl.zeros([ROWS, HEAD_DIM], tl.float32)
    table = block_tables_ptr + seq.to(tl.int64) * table_stride
    last_key = tl.minimum(num_keys, num_keys - num_queries + first_row + ROWS)
    for tile_start in range(0, last_key, TILE):
        positions = tile_start + tl.arange(0, TILE)
        is_token = positions < num_keys
        if PAGED:
            row = cache_rows(table, positions, num_keys, BLOCK_SIZE)
        else:
            row = (k_start + positions).to(tl.int64)
        k_offsets = row[:, None] * k_stride + kv_head * HEAD_DIM + features[None, :]
        v_offsets = row[:, None] * v_stride + kv_head * HEAD_DIM + features[None, :]
        k = tl.load(k_ptr + k_offsets, mask=is_token[:, None], other=0.0)
        v = tl.load(v_ptr + v_offsets, mask=is_token[:, None], other=0.0)
        scores = tl.dot(q.to(DOT_DTYPE), tl.trans(k.to(DOT_DTYPE)), input_precision="ieee") * scale
        is_visible = is_token[None, :] & (positions[None, :] <= query_positions[:, None])
        scores = tl.where(is_visible, scores, float("-inf"))
        maximum, total, output = online_softmax_step(scores, v, maximum, total, output, DOT_DTYPE)
    out_offsets = (
        (q_start + rows).to(tl.int64)[:, None] * NUM_KV_HEADS * GROUP + head
    ) * HEAD_DIM + features[None, :]
    tl.store(output_ptr + out_offsets, output / total[:, None], mask=is_query[:, None])


def paged_decode(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, context: Context, scale: float
) -> Tensor:
    """Attention of one query a sequence over its cached keys and values.

    Args:
        q: [num_seqs, num_heads, head_dim].
        k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim], contiguous.
        context: `block_tables` and `context_lens` are used.
        scale: factor of the scores.

    Returns:
        [num_seqs, num_heads, head_dim].
    """
    assert context.block_tables is not None
    num_seqs, num_heads, head_dim = q.shape
    block_size, num_kv_heads = k_cache.shape[1], k_cache.shape[2]
    chunk_size = next(size for limit, size in CHUNK_SIZES if num_seqs * num_kv_heads <= limit)
    num_chunks = triton.cdiv(context.block_tables.shape[1] * block_size, chunk_size)
    output = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    partial = torch.empty(
        num_seqs, num_chunks, num_heads, head_dim, dtype=torch.float32, device=q.device
    )
    lse = torch.empty(num_seqs, num_chunks, num_heads, dtype=torch.float32, device=q.device)
    group = num_heads // num_kv_heads
    tile = decode_tile(head_dim, group, k_cache.dtype, shared_memory(q.device))
    assert tile is not None, "see tiles.head_problem"
    paged_decode_kernel[(num_kv_heads, num_seqs, num_chunks)](
        q,
        k_cache,
        v_cache,
        output,
        partial,
        lse,
        chunk_counters(q.device, triton.next_power_of_2(num_seqs * num_kv_heads)),
        context.block_tables,
        context.context_lens,
        scale * LOG2_E,
        q.stride(0),
        context.block_tables.stride(0),
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        ROWS=tile[0],
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
        TILE=tile[1],
        CHUNK=chunk_size,
        DOT_DTYPE=dot_dtype(q.dtype),
        num_warps=4,
        num_stages=2,
        **overlap_options(q.device),
    )
    return output


@cache
def chunk_counters(device: torch.device, size: int) -> Tensor:
    """Zeros, [size] int32: chunks of a sequence and head that are done. Every launch leaves zeros.

    The engines of a process share them, which is safe because their kernels run one after the
    other, on one stream. They stay when an engine ends, because the graphs of another may hold
    their address; with a power of two for the size, that is less than 100 KB in all.
    """
    return torch.zeros(size, dtype=torch.int32, device=device)


def paged_prefill(q: Tensor, k: Tensor, v: Tensor, context: Context, scale: float) -> Tensor:
    """Causal attention of each sequence's last tokens to all its tokens.

    Args:
        q: [num_tokens, num_heads, head_dim].
        k, v: the cache [num_blocks, block_size, num_kv_heads, head_dim] if `context.block_tables`
            is given, else the batch's own [num_tokens, num_kv_heads, head_dim].
        context: `cu_seqlens_q`, `cu_seqlens_k`, `max_seqlen_q` and `block_tables` are used.
        scale: factor of the scores.

    Returns:
        [num_tokens, num_heads, head_dim].
    """
    assert context.cu_seqlens_q is not None
    paged = context.block_tables is not None
    num_heads, head_dim = q.shape[1:]
    num_kv_heads = k.shape[-2]
    row_dim = k.ndim - 3  # a row of the cache is a slot in a block
    output = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    tile = prefill_tile(head_dim, q.dtype, shared_memory(q.device))
    assert tile is not None, "see tiles.head_problem"
    rows, num_keys, num_stages = tile
    num_seqs = len(context.cu_seqlens_q) - 1
    paged_prefill_kernel[(triton.cdiv(context.max_seqlen_q, rows), num_seqs, num_heads)](
        q,
        k,
        v,
        output,
        context.cu_seqlens_q,
        context.cu_seqlens_k,
        context.block_tables if paged else context.cu_seqlens_q,
        scale * LOG2_E,
        q.stride(0),
        k.stride(row_dim),
        v.stride(row_dim),
        context.block_tables.stride(0) if context.block_tables is not None else 0,
        NUM_KV_HEADS=num_kv_heads,
        GROUP=num_heads // num_kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=k.shape[1] if paged else 1,
        ROWS=rows,
        TILE=num_keys,
        DOT_DTYPE=dot_dtype(q.dtype),
        PAGED=paged,
        num_warps=4,
        num_stages=num_stages,
    )
    return output


def dot_dtype(dtype: torch.dtype) -> Any:
    """Type of the matrix products' operands: the tensors' own, but float32 in Triton's interpreter.

    The interpreter keeps bfloat16 as raw bits and computes nonsense with them, silently.
    """
    if triton.knobs.runtime.interpret:
        return tl.float32
    return {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}[
        dtype
    ]
