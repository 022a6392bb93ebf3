"""Our answers to chapter 10, attention, cut out of nanovllm/, each with its reason."""

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
import math
from torch import Tensor


# --- ch10.causal_attention
# PyTorch's scaled_dot_product_attention picks a fast kernel, and never writes the scores down. Two things it has to be told.
# Its is_causal lines queries and keys up at the first token, which is right for a whole prompt and wrong behind a prefix; so a
# mask says it there. And a single query sees everything, so it needs no mask at all: then the heads of a group can be rows of
# one product with the keys that they share, which reads these once. That is the case that runs for every token written.
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


# --- ch10.store_kvcache
# The cache is one piece of memory, and a slot is a row of it: block times block size plus place. So writing is a copy of rows
# to an index, which PyTorch calls index_copy_ and a GPU does with a program for each token. It matters that the cache itself
# is written: flatten gives a view here, because the pool is contiguous, where reshape of something else might give a copy, and
# nobody would notice before the text is wrong. It runs in every layer of every step, before anybody attends.
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


# --- ch10.merge_tile
# A softmax needs the largest score, for exp() would be infinite otherwise, and the sum of all; both are known only at the end.
# But what was summed with another maximum is wrong by one factor only. So keys can come in tiles that fit into fast memory, and
# the scores are never written down: that is FlashAttention. The same rule merges any two parts, also such as were computed side
# by side by different programs: a long context is cut into chunks, and the results are merged at the end (Flash-Decoding).
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
    new_maximum = torch.maximum(maximum, scores.amax(1))
    shift = new_maximum.masked_fill(new_maximum == -math.inf, 0.0)  # -inf - -inf would be nan
    weights, decay = torch.exp(scores - shift[:, None]), torch.exp(maximum - shift)
    return new_maximum, total * decay + weights.sum(1), output * decay[:, None] + weights @ values


# --- ch10.decode_kernel
# This is the whole idea of a paged decode kernel. The engine's differs in four things. One program serves all query heads that
# share a KV head, so that their keys are read once. A tile is not a block: it takes rows from several, so that any block size
# works with the tile that is best for the GPU. Long contexts are cut into chunks for several programs. And products of tiles are
# left to matrix units (tl.dot), exponentials to base 2. What it may not do is read anything twice: the time of a decode step is
# the bytes of the cache.
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
    head, features, places = tl.program_id(0), tl.arange(0, HEAD_DIM), tl.arange(0, BLOCK_SIZE)
    q = tl.load(q_ptr + head * HEAD_DIM + features) * scale
    maximum, total, output = float("-inf"), 0.0, tl.zeros([HEAD_DIM], tl.float32)
    for i in range(0, tl.cdiv(num_tokens, BLOCK_SIZE)):
        is_token = i * BLOCK_SIZE + places < num_tokens
        rows = (tl.load(table_ptr + i) * BLOCK_SIZE + places) * KV_HEADS + head // GROUP
        offsets = rows[:, None] * HEAD_DIM + features[None, :]
        k = tl.load(k_ptr + offsets, mask=is_token[:, None], other=0.0)
        v = tl.load(v_ptr + offsets, mask=is_token[:, None], other=0.0)
        scores = tl.where(is_token, tl.sum(q[None, :] * k, axis=1), float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, axis=0))
        weights, decay = tl.exp(scores - new_maximum), tl.exp(maximum - new_maximum)
        total, maximum = total * decay + tl.sum(weights, axis=0), new_maximum
        output = output * decay + tl.sum(weights[:, None] * v, axis=0)
    tl.store(o_ptr + head * HEAD_DIM + features, output / total)


# --- ch10.choose_blocks
# Attention to the mean key, made shares and added over the heads of a group, loses 9.5 %. Ours adds half of a guessed variance,
# because the mean of exp(score) is more than exp of the mean score, and loses 9.4; whoever knows all scores loses 8.3. The largest
# score that is possible in a block (Quest, 2024) is a bound, and as a guess it is worse here than the newest blocks: 14.0. The
# paper uses it with large models, and models with an attention sink need their first block: so such a choice has to be measured on
# the model that is served. The summaries have to be read, too: three rows for every eight keys and
# eight values.
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
    # A block's share is about exp(score of its mean key), and more where its scores differ widely.
    scores = scale * query @ mean.T
    variance = (scale * query) ** 2 @ ((largest - smallest) / 4).T ** 2
    shares = (scores + variance / 2).softmax(-1).sum(0)
    return shares.topk(min(budget, len(shares))).indices.tolist()
