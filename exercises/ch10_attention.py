"""Your answers to chapter 10, attention.

Write here, or in the notebook's cells, which write here. Helpers and imports may stand beside a function, under its
marker line; those at the top are for all. "python -m exercises check" says how it is going; "python -m exercises" what
there is to do.
"""

# derived: 117392f3485f
# ruff: noqa
# mypy: ignore-errors
# fmt: off

from __future__ import annotations

from typing import Any
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from nanovllm.utils.context import Context, get_context
from nanovllm.layers.attention import Attention, store_kvcache, gather_kvcache, causal_attention
from torch import Tensor


# --- ch10.causal_attention
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
    raise NotImplementedError("ch10.causal_attention")


# --- ch10.store_kvcache
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
    raise NotImplementedError("ch10.store_kvcache")


# --- ch10.merge_tile
def merge_tile(
    scores: Tensor, values: Tensor, maximum: Tensor, total: Tensor, output: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Take one more tile of keys into a softmax that has seen others before.

    Of all keys so far, each query knows `maximum`, the largest score; `total`, the sum of
    exp(score - maximum); and `output`, the sum of exp(score - maximum) * value, not divided yet.
    Before the first tile these are -inf, 0 and 0, and so they stay for a query that may see none of
    the keys. Nothing is ever nan, however large or small the scores are.

    Args:
        scores: [num_queries, tile_size] of the new keys; -inf where a query may not see a key.
        values: [tile_size, head_dim].
        maximum, total: [num_queries].
        output: [num_queries, head_dim].

    Returns:
        the three for all keys so far, the new ones included, as new tensors.
    """
    raise NotImplementedError("ch10.merge_tile")


# --- ch10.decode_kernel
def decode_kernel(  # type: ignore[no-untyped-def]
    q_ptr, k_ptr, v_ptr, table_ptr, o_ptr, num_tokens, scale, GROUP, KV_HEADS, HEAD_DIM, BLOCK_SIZE
):
    """A kernel: one query of one sequence attends to all its keys, which lie in the paged cache.

    A program for each query head, `tl.program_id(0)`, writes the output of that head. What comes is
    pointers to contiguous tensors, float32 but for the table:

    - q, and o for the output: [num_heads, HEAD_DIM];
    - k and v, the caches: [num_blocks, BLOCK_SIZE, KV_HEADS, HEAD_DIM]; 32 bits hold any offset;
    - table: int32, an entry for each block of the sequence: token i lies in the block
      table[i // BLOCK_SIZE], at place i % BLOCK_SIZE. It ends with the last block.

    Behind the last token lie numbers of others; beside the tensors nothing may be read. A masked
    load without `other` gives anything. `tl` is there, and no other library works in a kernel.

    Args:
        num_tokens: of the sequence, at least 1.
        scale: factor of the scores.
        GROUP: query heads that share a KV head: query head h looks at KV head h // GROUP.
        KV_HEADS, HEAD_DIM, BLOCK_SIZE: as above; names in capitals are `tl.constexpr`, and the
            last two are powers of two.
    """
    raise NotImplementedError("ch10.decode_kernel")


# --- ch10.choose_blocks
def choose_blocks(
    query: Tensor, smallest: Tensor, largest: Tensor, mean: Tensor, scale: float, budget: int
) -> list[int]:
    """Which blocks of the KV cache a decode step reads, if it may not read all.

    The goal: with a quarter of the blocks, as little attention as possible shall be lost: the share
    that falls on blocks that are not read. In `exercises.kit.attention_work`, on queries and keys
    of the bundled model, the newest blocks lose 11.9 %, and whoever knows all scores 8.3 %. At most
    10.5 % are asked for; and on another text less than the newest lose.

    It is called for each KV head of each layer, and keeps nothing in between.

    Args:
        query: [group, head_dim], of the query heads that share this KV head.
        smallest, largest, mean: [num_blocks, head_dim], over the keys of each block, feature by
            feature. The block of the newest token is the last, and may hold fewer tokens.
        scale: factor of the scores.
        budget: the most blocks that may be read, at least 1. It may be more than there are.

    Returns:
        their numbers, from 0 to num_blocks - 1, in any order, each of them once.
    """
    raise NotImplementedError("ch10.choose_blocks")
