"""Attention over the paged KV cache.

Every backend offers the same two functions: `prefill` for many new tokens a sequence and `decode` for one.
The cache of a layer is a pair of tensors [num_blocks, block_size, num_kv_heads, head_dim]; token number i of
a sequence lies in block `block_table[i // block_size]` at offset `i % block_size` (PagedAttention, Kwon et al., 2023).
"""

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import nn

from ..utils.context import Context, get_context


class AttentionBackend(Protocol):
    """What an attention implementation has to offer."""

    name: str

    def store_kvcache(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Write [num_tokens, num_kv_heads, head_dim] keys and values into their slots."""

    def prefill(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, context: Context, scale: float
    ) -> torch.Tensor:
        """Causal attention; q, k, v as in `Attention.forward`, or k, v the cache if there are block tables."""

    def decode(
        self, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, context: Context, scale: float
    ) -> torch.Tensor:
        """Attention of one query a sequence, [num_seqs, num_heads, head_dim], over its cached keys and values."""


class Attention(nn.Module):
    """Stores the new keys and values, then attends to all of each sequence.

    The engine sets `k_cache`, `v_cache` and `backend` when it allocates the KV cache.

    Args:
        num_heads, num_kv_heads: on this rank; the first is a multiple of the second (grouped queries).
        head_dim: size of a head.
        scale: factor of the scores, usually head_dim ** -0.5.
    """

    def __init__(self, num_heads: int, head_dim: int, scale: float, num_kv_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.scale = scale
        self.num_kv_heads = num_kv_heads
        self.k_cache = self.v_cache = torch.empty(0)
        self.backend: AttentionBackend = SDPABackend()

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_stored: bool = False) -> torch.Tensor:
        """Attend.

        Args:
            q: [num_tokens, num_heads, head_dim].
            k, v: [num_tokens, num_kv_heads, head_dim].
            is_stored: whether keys and values are in the cache already.

        Returns:
            [num_tokens, num_heads, head_dim].
        """
        context = get_context()
        # All keys and values of the batch are stored before any row attends: a sequence may share a block
        # that another one fills in this very step.
        if context.slot_mapping is not None and self.k_cache.numel() and not is_stored:
            self.backend.store_kvcache(k, v, self.k_cache, self.v_cache, context.slot_mapping)
        if not context.is_prefill:
            return self.backend.decode(q, self.k_cache, self.v_cache, context, self.scale)
        if context.block_tables is not None:
            k, v = self.k_cache, self.v_cache
        return self.backend.prefill(q, k, v, context, self.scale)


def store_kvcache(
    key: torch.Tensor, value: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slot_mapping: torch.Tensor
) -> None:
    """Write keys and values into their slots of the paged cache.

    Args:
        key, value: [num_tokens, num_kv_heads, head_dim].
        k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim].
        slot_mapping: [num_tokens] int64, block id * block_size + offset.
    """
    k_cache.flatten(0, 1).index_copy_(0, slot_mapping, key)
    v_cache.flatten(0, 1).index_copy_(0, slot_mapping, value)


def gather_kvcache(cache: torch.Tensor, block_ids: list[int], num_tokens: int) -> torch.Tensor:
    """The first `num_tokens` rows of a sequence's blocks, [num_tokens, num_kv_heads, head_dim].

    Consecutive blocks are one stretch of memory, and a view of it costs nothing; else the blocks are copied.
    """
    block_size = cache.shape[1]
    block_ids = block_ids[: -(-num_tokens // block_size)]
    first = block_ids[0]
    if block_ids == list(range(first, first + len(block_ids))):
        return cache.flatten(0, 1)[first * block_size : first * block_size + num_tokens]
    index = torch.tensor(block_ids, device=cache.device)
    return cache.index_select(0, index).flatten(0, 1)[:num_tokens]


class SDPABackend:
    """Plain PyTorch: one `scaled_dot_product_attention` a sequence, on any device, with any block size."""

    name = "sdpa"
    store_kvcache = staticmethod(store_kvcache)

    def prefill(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, context: Context, scale: float
    ) -> torch.Tensor:
        """See `AttentionBackend.prefill`."""
        output = torch.empty_like(q)
        starts = context.query_starts
        for i, kv_len in enumerate(context.kv_lens):
            rows = slice(starts[i], starts[i + 1])
            if context.block_tables is None:
                keys, values = k[rows], v[rows]
            else:
                keys = gather_kvcache(k, context.kv_blocks[i], kv_len)
                values = gather_kvcache(v, context.kv_blocks[i], kv_len)
            output[rows] = causal_attention(q[rows], keys, values, scale)
        return output

    def decode(
        self, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, context: Context, scale: float
    ) -> torch.Tensor:
        """See `AttentionBackend.decode`."""
        output = torch.empty_like(q)
        num_kv_heads = k_cache.shape[2]
        # The queries of a group attend to the same keys, so they are rows of one small matrix product.
        groups = q.unflatten(1, (num_kv_heads, -1)).unsqueeze(1)
        grouped_output = output.unflatten(1, (num_kv_heads, -1)).unsqueeze(1)
        for i, kv_len in enumerate(context.kv_lens):
            keys = gather_kvcache(k_cache, context.kv_blocks[i], kv_len).transpose(0, 1).unsqueeze(0)
            values = gather_kvcache(v_cache, context.kv_blocks[i], kv_len).transpose(0, 1).unsqueeze(0)
            grouped_output[i] = F.scaled_dot_product_attention(groups[i], keys, values, scale=scale)
        return output


def causal_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """Attention of the last tokens of one sequence to all before them, and to themselves.

    Args:
        q: [num_queries, num_heads, head_dim], the queries of the last `num_queries` tokens.
        k, v: [num_tokens, num_kv_heads, head_dim], with num_tokens >= num_queries.

    Returns:
        [num_queries, num_heads, head_dim].
    """
    num_queries, num_tokens = len(q), len(k)
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
    if num_queries == num_tokens:
        output = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
    else:
        # `is_causal` lines both sequences up at their first token; a prefix needs them lined up at the last.
        mask = torch.ones(num_queries, num_tokens, dtype=torch.bool, device=q.device).tril(num_tokens - num_queries)
        output = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True)
    return output.squeeze(0).transpose(0, 1)


class FlashAttentionBackend:
    """The flash-attn package (Dao, 2023): fused kernels that read the pages themselves."""

    name = "flash_attn"

    def __init__(self) -> None:
        from flash_attn import flash_attn_varlen_func, flash_attn_with_kvcache

        from .kernels.store_kvcache import store_kvcache_triton

        self.varlen_func, self.with_kvcache = flash_attn_varlen_func, flash_attn_with_kvcache
        self.store_kvcache = store_kvcache_triton

    def prefill(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, context: Context, scale: float
    ) -> torch.Tensor:
        """See `AttentionBackend.prefill`."""
        return self.varlen_func(
            q,
            k,
            v,
            cu_seqlens_q=context.cu_seqlens_q,
            cu_seqlens_k=context.cu_seqlens_k,
            max_seqlen_q=context.max_seqlen_q,
            max_seqlen_k=context.max_seqlen_k,
            softmax_scale=scale,
            causal=True,
            block_table=context.block_tables,
        )

    def decode(
        self, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, context: Context, scale: float
    ) -> torch.Tensor:
        """See `AttentionBackend.decode`."""
        return self.with_kvcache(
            q.unsqueeze(1),
            k_cache,
            v_cache,
            cache_seqlens=context.context_lens,
            block_table=context.block_tables,
            softmax_scale=scale,
            causal=True,
        ).squeeze(1)


class TritonBackend:
    """The package's own kernels: nothing to compile beforehand, and any block size."""

    name = "triton"

    def __init__(self) -> None:
        from .kernels.paged_attention import paged_decode, paged_prefill
        from .kernels.store_kvcache import store_kvcache_triton

        self.prefill, self.decode, self.store_kvcache = paged_prefill, paged_decode, store_kvcache_triton


def get_attention_backend(name: str) -> AttentionBackend:
    """The backend called `name`, which `Config` has checked."""
    backends: dict[str, Callable[[], AttentionBackend]] = {
        "sdpa": SDPABackend,
        "triton": TritonBackend,
        "flash_attn": FlashAttentionBackend,
    }
    return backends[name]()
