"""Attention over the paged KV cache.

The cache of a layer is a pair of tensors [num_blocks, block_size, num_kv_heads, head_dim]; token
number i of a sequence lies in block `block_table[i // block_size]` at offset `i % block_size`
(PagedAttention, Kwon et al., 2023).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..utils.context import Context, get_context


class Attention(nn.Module):
    """Stores the new keys and values, then attends to all of each sequence.

    In plain PyTorch, on any device. `k_cache` and `v_cache` are set when the engine allocates the
    KV cache.

    Args:
        num_heads, num_kv_heads: on this rank; the first is a multiple of the second (grouped
            queries).
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

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend.

        Args:
            q: [num_tokens, num_heads, head_dim].
            k, v: [num_tokens, num_kv_heads, head_dim].

        Returns:
            [num_tokens, num_heads, head_dim].
        """
        context = get_context()
        # All keys and values of the batch are stored before any row attends: a sequence may share a
        # block that another one fills in this very step.
        if self.k_cache.numel() and context.slot_mapping is not None:
            self.store(k, v, context.slot_mapping)
        return self.attend(q, k, v, context)

    def store(self, k: Tensor, v: Tensor, slot_mapping: Tensor) -> None:
        """Write keys and values into their slots; see `store_kvcache`."""
        store_kvcache(k, v, self.k_cache, self.v_cache, slot_mapping)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Each sequence by itself; its keys and values are in the cache, or, if new, in k and v."""
        output = torch.empty_like(q)
        starts = context.query_starts
        for i, kv_len in enumerate(context.kv_lens):
            rows = slice(starts[i], starts[i + 1])
            keys, values = k[rows], v[rows]
            if context.block_tables is not None:
                keys = gather_kvcache(self.k_cache, context.kv_blocks[i], kv_len)
                values = gather_kvcache(self.v_cache, context.kv_blocks[i], kv_len)
            output[rows] = causal_attention(q[rows], keys, values, self.scale)
        return output


def store_kvcache(
    key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor
) -> None:
    """Write keys and values into their slots of the paged cache, and nowhere else.

    Args:
        key, value: [num_tokens, num_kv_heads, head_dim].
        k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim], contiguous; changed in
            place.
        slot_mapping: [num_tokens] int64, block id * block_size + offset.
    """
    k_cache.flatten(0, 1).index_copy_(0, slot_mapping, key)
    v_cache.flatten(0, 1).index_copy_(0, slot_mapping, value)


def gather_kvcache(cache: Tensor, block_ids: list[int], num_tokens: int) -> Tensor:
    """The first `num_tokens` rows of a sequence's blocks, [num_tokens, num_kv_heads, head_dim].

    Consecutive blocks are one stretch of memory, and a view of it costs nothing; else the blocks
    are copied.
    """
    block_size = cache.shape[1]
    block_ids = block_ids[: -(-num_tokens // block_size)]
    first = block_ids[0]
    if block_ids == list(range(first, first + len(block_ids))):
        return cache.flatten(0, 1)[first * block_size : first * block_size + num_tokens]
    return cache[torch.tensor(block_ids, device=cache.device)].flatten(0, 1)[:num_tokens]


def causal_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Attention of the last tokens of one sequence to all before them, and to themselves.

    Args:
        q: [num_queries, num_heads, head_dim], the queries of the last `num_queries` tokens.
        k, v: [num_tokens, num_kv_heads, head_dim], with num_tokens >= num_queries. Query head h
            looks at KV head h // (num_heads // num_kv_heads).
        scale: factor of the scores, above 0.

    Returns:
        [num_queries, num_heads, head_dim], in the dtype of q. Scores of any size do no harm, nor do
        products of query and key that are too large for float16 until they are scaled.
    """
    num_queries, num_tokens, num_kv_heads = len(q), len(k), k.shape[1]
    if num_queries == 1:  # the heads of a group share their keys: they are rows of one product
        q = q.view(num_kv_heads, -1, q.shape[2]).transpose(0, 1)
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
    if num_queries == 1:
        return F.scaled_dot_product_attention(q, k, v, scale=scale).flatten(1, 2)
    mask = None
    if num_queries < num_tokens:
        # `is_causal` lines both sequences up at the first token; a prefix needs it at the last.
        mask = torch.ones(num_queries, num_tokens, dtype=torch.bool, device=q.device)
        mask = mask.tril(num_tokens - num_queries)
    options: Any = {"is_causal": mask is None, "scale": scale, "enable_gqa": True}
    output = F.scaled_dot_product_attention(q, k, v, mask, **options)
    return output.squeeze(0).transpose(0, 1)
