"""Real queries, keys and values of the bundled model, and how much of attention a choice of blocks keeps.

For chapter 10: what it draws, and the work of its open exercise.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

import nanovllm

from . import manifest, talk_work
from .assemble import Without

BLOCK_SIZE, NUM_TOKENS = 8, 1024
FIRST, EVERY = 263, 37  # the tokens whose queries are tried
SHARE = 4  # one block of so many may be read
NO_MASK = """
q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
return F.scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=True).squeeze(0).transpose(0, 1)
"""


class Heads(NamedTuple):
    """What an attention layer was given for a text.

    Args:
        q: [num_tokens, num_heads, head_dim], with the rotary embedding in it.
        k, v: [num_tokens, num_kv_heads, head_dim].
        scale: factor of the scores.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    scale: float


def heads_of(llm: Any, prompt: str | list[int]) -> list[Heads]:
    """Queries, keys and values of every layer while an engine reads a prompt.

    Its prefix cache has to be off, or the prompt new to it.
    """
    layers = [layer.self_attn.attn for layer in llm.llm_engine.model_runner.model.model.layers]
    found: list[Heads] = []

    def spy(attn: Any) -> Callable[..., Tensor]:
        attend = attn.attend

        def noted(q: Tensor, k: Tensor, v: Tensor, context: Any) -> Tensor:
            found.append(Heads(q.clone(), k.clone(), v.clone(), attn.scale))
            return attend(q, k, v, context)

        return noted

    try:
        for attn in layers:
            attn.attend = spy(attn)
        llm.generate([prompt], nanovllm.SamplingParams(temperature=0, max_tokens=1), use_tqdm=False)
    finally:
        for attn in layers:
            vars(attn).pop("attend", None)
    return found[: len(layers)]


def engine_with(exercise_id: str, body: str) -> Without:
    """Our engine with another body of a function, for trying out mistakes."""
    return Without(dataclasses.replace(manifest.get(exercise_id), without=body))


def patterns(attention: Callable[..., Tensor], heads: Heads) -> Tensor:
    """The weights of attention, [num_heads, num_queries, num_tokens], from a function that returns only outputs.

    Where the values are 1 for one token and 0 for all others, the output is that token's weight. A feature for each
    token, so there may be no more tokens than features.
    """
    num_tokens, num_kv_heads, head_dim = heads.v.shape
    values = torch.zeros(num_tokens, num_kv_heads, head_dim)
    values[range(num_tokens), :, range(num_tokens)] = 1.0
    return attention(heads.q, heads.k, values, heads.scale)[:, :, :num_tokens].transpose(0, 1)


def first_tokens_share(layers: list[Heads], start: int = 100) -> float:
    """The largest share of attention that any head of any layer gives the first token, the mean over later queries."""
    found = []
    for q, k, _, scale in layers:
        keys = k.repeat_interleave(q.shape[1] // k.shape[1], 1).transpose(0, 1)
        is_later = torch.ones(len(q), len(k), dtype=torch.bool).triu(1)
        scores = (scale * q.transpose(0, 1) @ keys.transpose(1, 2)).masked_fill(is_later, -torch.inf)
        found.append(scores.softmax(-1)[:, start:, 0].mean(1).max())
    return float(torch.stack(found).max())


def sink(llm: Any, num_tokens: int = 1000, start: int = 100) -> tuple[float, float]:
    """`first_tokens_share` in a long text, and what it would be if all keys had the same share."""
    said = [said for pair in talk_work.TALK[:20] for said in pair]
    ids = llm.tokenizer.encode("\n".join(said))[:num_tokens]
    even = sum(1 / (i + 1) for i in range(start, len(ids))) / (len(ids) - start)
    return first_tokens_share(heads_of(llm, ids), start), even


def walked(layer: int = 6, head: int = 1, num_steps: int = 8) -> dict[str, Any]:
    """What `PagedGather` draws: a head of the bundled model in a decode step, of a sequence that shares the pool.

    Two requests write in turn, so their blocks of four tokens lie between each other's.
    """
    options: dict[str, Any] = {"kvcache_block_size": 4, "num_kvcache_blocks": 12, "max_model_len": 48, "device": "cpu"}
    with nanovllm.LLM("qwen3-tiny", **options, enable_prefix_caching=False, disabled_optimizations="all") as llm:
        params = nanovllm.SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
        first = llm.add_request("Mia has a red ball. Tom has a", params)
        second = llm.add_request("The sun was warm", params)
        for _ in range(num_steps):
            llm.step()
        attn = llm.llm_engine.model_runner.model.model.layers[layer].self_attn.attn
        seq, other = (llm.llm_engine.requests[number].seq for number in (first, second))
        found, attend = dict[str, Any](), attn.attend

        def noted(q: Tensor, k: Tensor, v: Tensor, context: Any) -> Tensor:
            kv_head = head // (attn.num_heads // attn.num_kv_heads)
            caches = {"k_cache": attn.k_cache[:, :, kv_head].clone(), "v_cache": attn.v_cache[:, :, kv_head].clone()}
            found.update(caches, q=q[0, head].clone(), num_tokens=int(context.context_lens[0]), scale=attn.scale)
            return attend(q, k, v, context)

        attn.attend = noted
        llm.step()
        texts = [llm.tokenizer.decode([token_id]) for token_id in seq.token_ids]
        found.update(block_table=list(seq.block_table), texts=texts, others=list(other.block_table))
    return found


class Decode(NamedTuple):
    """A query at work: what `choose_blocks` may know of one KV head, and where attention really goes.

    Args:
        query: [group, head_dim].
        smallest, largest, mean: [num_blocks, head_dim], of the keys of each block.
        scale: factor of the scores.
        shares: [num_blocks], of attention, the mean over the group.
    """

    query: Tensor
    smallest: Tensor
    largest: Tensor
    mean: Tensor
    scale: float
    shares: Tensor

    @property
    def budget(self) -> int:
        """How many blocks may be read."""
        return max(1, len(self.shares) // SHARE)


def decode_of(query: Tensor, keys: Tensor, scale: float, block_size: int = BLOCK_SIZE) -> Decode:
    """One query group [group, head_dim] and the keys [num_tokens, head_dim] of its KV head."""
    blocks = keys.split(block_size)
    weights = (scale * query @ keys.T).softmax(-1).mean(0)
    shares = torch.stack([part.sum() for part in weights.split(block_size)])
    smallest, largest = (torch.stack([of(block, 0) for block in blocks]) for of in (torch.amin, torch.amax))
    mean = torch.stack([block.mean(0) for block in blocks])
    return Decode(query, smallest, largest, mean, scale, shares)


@lru_cache(maxsize=2)
def decodes(name: str = "talk") -> list[Decode]:
    """Queries of all layers and KV heads in the recorded talk of chapter 7, or in its "answers" alone."""
    options: dict[str, Any] = {"kvcache_block_size": 16, "num_kvcache_blocks": 80, "max_num_seqs": 1}
    with nanovllm.LLM("qwen3-tiny", device="cpu", disabled_optimizations="all", max_model_len=1100, **options) as llm:
        said = [said for pair in talk_work.TALK for said in (pair if name == "talk" else pair[1:])]
        ids = [token_id for text in said[:60] for token_id in llm.tokenizer.encode(f"{text}\n")]
        heads = heads_of(llm, ids[:NUM_TOKENS])
    return [
        decode_of(layer.q[n].unflatten(0, (layer.k.shape[1], -1))[h], layer.k[: n + 1, h], layer.scale)
        for layer in heads
        for n in range(FIRST, NUM_TOKENS, EVERY)
        for h in range(layer.k.shape[1])
    ]


def lost(choose: Callable[..., Sequence[int]], name: str = "talk") -> float:
    """The share of attention that falls on blocks which are not read, the mean over all queries."""
    found = []
    for decode in decodes(name):
        chosen = choose(*(x.clone() if isinstance(x, Tensor) else x for x in decode[:5]), decode.budget)
        found.append(1.0 - float(decode.shares[list(chosen)].sum()))
    return sum(found) / len(found)


def newest(query: Tensor, smallest: Tensor, largest: Tensor, mean: Tensor, scale: float, budget: int) -> list[int]:
    """The plain answer: the last blocks."""
    return list(range(max(0, len(mean) - budget), len(mean)))


def first_and_newest(
    query: Tensor, smallest: Tensor, largest: Tensor, mean: Tensor, scale: float, budget: int
) -> list[int]:
    """What is right for models that look at their first token always."""
    return sorted({0, *range(max(0, len(mean) - budget + 1), len(mean))})[:budget]


def bound(query: Tensor, smallest: Tensor, largest: Tensor, mean: Tensor, scale: float, budget: int) -> list[int]:
    """The blocks in which the largest possible score is highest (Quest, 2024)."""
    highest = torch.maximum(query[:, None] * smallest, query[:, None] * largest).sum(-1).amax(0)
    return highest.topk(min(budget, len(highest))).indices.tolist()


def least(name: str = "talk") -> float:
    """What is lost by somebody who knows all scores."""
    kept = [float(decode.shares.topk(min(decode.budget, len(decode.shares))).values.sum()) for decode in decodes(name)]
    return 1.0 - sum(kept) / len(kept)
