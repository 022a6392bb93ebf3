"""Grader of chapter 10. What is right is said by plain loops: a key at a time, a query at a time, in float64."""

import contextlib
import functools
import math
import random

import torch

from exercises.kit import attention_work, kernel_work
from exercises.kit.grading import Check, Engine, case
from exercises.kit.probes import check_tensor, describe, looks_like

INF = math.inf


def numbers(*shape, seed=0, spread=1.0):
    """Random numbers with two digits, all different enough."""
    generator = torch.Generator().manual_seed(seed)
    return (spread * torch.randn(*shape, generator=generator)).mul(100).round().div(100)


def distinct(expected, mistakes):
    """The mistakes that show on these inputs, and can be told from one another."""
    found = {text: tensor for text, tensor in mistakes.items() if tensor is not None}

    def same(one, other):
        close = one.shape == other.shape and torch.allclose(one.double(), other.double(), 1e-3, 1e-4, equal_nan=True)
        return close or (one.shape == other.shape and bool((one.double() - other.double()).abs().max() < 1e-4))

    return {
        text: tensor
        for text, tensor in found.items()
        if not same(tensor, expected) and not any(same(tensor, found[other]) for other in found if other != text)
    }


# store_kvcache


EXCHANGED = "Here lie the values, and there the keys: they have changed places."
TWICE = {
    "k_cache": "The values were stored in k_cache, too, and the keys nowhere.",
    "v_cache": "The keys were stored a second time, in v_cache, and the values nowhere.",
}
MISPLACED = {
    "k_cache": "Here lie the values. They belong in v_cache, and the keys belong here.",
    "v_cache": "Here lie the keys. They belong in k_cache, and the values belong here.",
}


def stored(cache, rows, slots):
    """A copy of the cache with rows in their slots, one after the other."""
    cache = cache.clone()
    size = cache.shape[1]
    for row, slot in zip(rows, slots, strict=True):
        cache[slot // size, slot % size] = row
    return cache


def store_mistakes(cache, rows, others, slots):
    """What a cache looks like after well-known mistakes."""
    num_blocks, size = cache.shape[:2]
    turned, whole, added = cache.clone(), cache.clone(), cache.clone()
    for row, slot in zip(rows, slots, strict=True):
        if slot // size < size and slot % size < num_blocks:
            turned[slot % size, slot // size] = row
        whole[slot // size] = row
        added[slot // size, slot % size] += row
    first = [slot // size * size for slot in slots]
    at_first, always = cache.clone(), cache.clone()  # erased before each row, also what this step has written
    for row, slot in zip(rows, slots, strict=True):
        at_first = stored(erased(at_first, [slot] if slot % size == 0 else []), [row], [slot])
        always = stored(erased(always, [slot]), [row], [slot])
    at_once = stored(erased(cache, [s for s in slots if s % size == 0]), rows, slots)
    all_at_once = stored(erased(cache, slots), rows, slots)
    return distinct(stored(cache, rows, slots), {
        "The cache is as it was: nothing was written into it, or into a copy of it.": cache,
        "The rows lie in the first slots, in the order of the tokens: the slot mapping was not looked at.":
            stored(cache, rows, range(len(slots))),
        EXCHANGED: stored(cache, others, slots),
        "Every row lies in the whole block of its slot. A slot is one place: slot % block_size in that block.": whole,
        "Every row lies in the first place of its block: the place in the block, slot % block_size, was left out.":
            stored(cache, rows, first),
        "The rows are added to what was there. A slot belongs to its new token alone.": added,
        "Every slot has the row of the last token.": stored(cache, rows[-1:].expand_as(rows), slots),
        "Every slot has the row of the first token.": stored(cache, rows[:1].expand_as(rows), slots),
        "The last token's row is missing.": stored(cache, rows[:-1], slots[:-1]),
        "The first token's row is missing.": stored(cache, rows[1:], slots[1:]),
        "Only the first token's row is there.": stored(cache, rows[:1], slots[:1]),
        "Only the last token's row is there.": stored(cache, rows[-1:], slots[-1:]),
        "The rows lie in the right slots, and in the order of the slots; each belongs into its own token's slot.":
            stored(cache, rows, sorted(slots)),
        "The rows lie in the right slots, and in the opposite order.": stored(cache, rows.flip(0), slots),
        "Every row lies one slot too far.": stored(cache, rows, [(s + 1) % (num_blocks * size) for s in slots]),
        "Every row lies one slot too early.": stored(cache, rows, [s - 1 for s in slots]),
        "All rows lie in the block of the first token. The block is slot // block_size, for each token its own.":
            stored(cache, rows, [slots[0] // size * size + s % size for s in slots]) if slots else None,
        "All rows lie in the block of the last token. The block is slot // block_size, for each token its own.":
            stored(cache, rows, [slots[-1] // size * size + s % size for s in slots])
            if slots and slots[-1] // size != slots[0] // size else None,
        "All else in the cache was erased.": stored(torch.zeros_like(cache), rows, slots),
        "The whole block was erased before a row was written into it.":
            all_at_once,
        "Each row's whole block was erased before it, with the rows that this step had put there.":
            None if torch.equal(always, all_at_once) or torch.equal(always, at_first) else always,
        "Block and place have changed places: slot // block_size is the block.": turned,
        "A block was erased where a row goes into its first place. Its other places belong to older tokens.":
            at_once,
        "A block was erased when a row went into its first place, with rows that this step had put there before.":
            None if torch.equal(at_first, at_once) else at_first,
        "The rows lie side by side, from the first one's slot on. Each has a slot of its own.":
            stored(cache, rows, range(slots[0], slots[0] + len(slots)))
            if slots and slots[0] + len(slots) <= num_blocks * size else None,
        "Only the first number of each row was written.": cornered(cache, rows, slots),
        "Slot 0 is as it was. It is a slot like all others.":
            stored(cache, [row for row, slot in zip(rows, slots, strict=True) if slot], [s for s in slots if s]),
        "Every row lies in block 0: the block is slot // block_size.": stored(cache, rows, [s % size for s in slots]),
        "Only the first head of each row is there.": partly(cache, rows, slots, slice(0, 1)),
        "Only the last head of each row is there.": partly(cache, rows, slots, slice(-1, None)),
        "All heads of a slot have the numbers of the first head.":
            stored(cache, rows[:, :1].expand_as(rows), slots),
        "A slot was taken for the number of a block, all of which was written over. It counts places through all "
        "blocks: slot // block_size is the block.": as_blocks(cache, rows, slots),
        "Only one row was written: the last token's, into the highest slot.":
            stored(cache, rows[-1:], [max(slots)]) if slots else None,
    })  # fmt: skip


def partly(cache, rows, slots, heads):
    """Only some heads of the rows in their slots."""
    new = stored(cache, rows, slots)
    cache = cache.clone()
    cache[:, :, heads] = new[:, :, heads]
    return cache


def cornered(cache, rows, slots):
    """The first number of each row alone."""
    new, cache = stored(cache, rows, slots), cache.clone()
    cache[..., 0, 0] = new[..., 0, 0]
    return cache


def as_blocks(cache, rows, slots):
    """Each row in all of the block that has the slot's number."""
    cache = cache.clone()
    for row, slot in zip(rows, slots, strict=True):
        if slot >= len(cache):
            return None
        cache[slot] = row
    return cache


def erased(cache, slots):
    cache = cache.clone()
    for slot in slots:
        cache[slot // cache.shape[1]] = 0
    return cache


def ask_to_store(engine, check, key, value, slots, shape, dtype=torch.float32):
    """Have rows stored in a cache that is full of other numbers, and look at all of it."""
    store = engine.get("layers.attention:store_kvcache")
    num_kv_heads, head_dim = key.shape[1:]
    k_cache, v_cache = (numbers(*shape, num_kv_heads, head_dim, seed=s, spread=3).to(dtype) for s in (7, 8))
    before = [tensor.clone() for tensor in (k_cache, v_cache, key, value)]
    check.step(
        f"{len(slots)} tokens with {num_kv_heads} KV heads of {head_dim}; {shape[0]} blocks of {shape[1]} slots; "
        f"slot_mapping {slots if len(slots) < 12 else f'of {len(slots)} slots'}",
        {
            "IndexError": "A place was asked for that is not there. A slot counts through all blocks: it is neither a "
            "block nor a place in a block. slot // block_size is the block, slot % block_size the place in it; and the "
            "block size is k_cache.shape[1].",
            "RuntimeError": "Shapes do not go together: a row is [num_kv_heads, head_dim], and k_cache[i] is a whole "
            "block. Of a slot make two indices, block and place, or of both dimensions one, with flatten(0, 1)."
            if key.is_contiguous()
            else "Here the rows of key and value do not lie side by side "
            "in memory: of the tensors only the caches are promised to be contiguous.",
        },
    )
    mapping = torch.tensor(slots, dtype=torch.int64)
    store(key, value, k_cache, v_cache, mapping)
    axes = ("block", "place", "head", "feature")
    for name, cache, old, rows, others, there, there_before in (
        ("k_cache", k_cache, before[0], before[2], before[3], v_cache, before[1]),
        ("v_cache", v_cache, before[1], before[3], before[2], k_cache, before[0]),
    ):
        meaning = MISPLACED[name]
        if torch.equal(there, stored(there_before, rows, slots)):
            meaning = EXCHANGED
        elif torch.equal(there, stored(there_before, others, slots)):
            meaning = TWICE[name]
        mistakes = store_mistakes(old, rows, others, slots)
        mistakes = {text.replace(EXCHANGED, meaning): tensor for text, tensor in mistakes.items()}
        check_tensor(check, name, cache, stored(old, rows, slots), axes, mistakes, dtype=dtype)
    same = torch.equal(key, before[2]) and torch.equal(value, before[3]) and mapping.tolist() == slots
    check.true("key, value and slot_mapping are as they were", same, "They are only read, and one has changed.")


@case("ch10.store_kvcache")
def store_three(engine: Engine, check: Check) -> None:
    """Three tokens go into slots of two blocks, in no order; the cache is full of other numbers."""
    ask_to_store(engine, check, numbers(3, 2, 3), numbers(3, 2, 3, seed=1), [9, 2, 8], (5, 4))


@case("ch10.store_kvcache")
def store_one(engine: Engine, check: Check) -> None:
    """One token, as in a decode of one sequence, with a single KV head."""
    ask_to_store(engine, check, numbers(1, 1, 4), numbers(1, 1, 4, seed=1), [13], (4, 4))


@case("ch10.store_kvcache")
def store_ends(engine: Engine, check: Check) -> None:
    """The first and the last slot of the pool, in blocks of 3 slots."""
    ask_to_store(engine, check, numbers(4, 3, 2), numbers(4, 3, 2, seed=1), [20, 0, 4, 19], (7, 3))


@case("ch10.store_kvcache")
def store_small(engine: Engine, check: Check) -> None:
    """A pool of many small blocks, so that a slot could be the number of a block; the slots 0 and 1 are among them."""
    ask_to_store(engine, check, numbers(4, 2, 2), numbers(4, 2, 2, seed=1), [7, 0, 4, 1], (12, 2))


@case("ch10.store_kvcache")
def store_views(engine: Engine, check: Check) -> None:
    """Keys and values are parts of one larger tensor, as the projection makes them: their rows are not side by side."""
    whole = numbers(5, 7, 4)
    ask_to_store(engine, check, whole[:, 2:4], whole[:, 5:7], [3, 11, 4, 5, 0], (3, 4))


@case("ch10.store_kvcache")
def store_many(engine: Engine, check: Check) -> None:
    """Forty tokens with bfloat16 numbers, into slots all over a pool of 16 blocks."""
    slots = random.Random(1).sample(range(16 * 8), 40)
    key, value = (numbers(40, 2, 8, seed=s).bfloat16() for s in (3, 4))
    ask_to_store(engine, check, key, value, slots, (16, 8), torch.bfloat16)


@case("ch10.store_kvcache")
def store_nothing(engine: Engine, check: Check) -> None:
    """A step without tokens changes nothing."""
    ask_to_store(engine, check, numbers(0, 2, 4), numbers(0, 2, 4), [], (3, 4))


# causal_attention


def attention(q, k, v, scale, sees=lambda i, j, shift: j <= i + shift, kv_head=lambda h, group, n: h // group,
              hidden=-INF, over="keys", after=False, upto=None):  # fmt: skip
    """Attention a query, a head and a key at a time.

    Args:
        sees: whether query i sees key j; `shift` is how many tokens come before the first query.
        kv_head: of query head h; `n` KV heads, `group` query heads to each.
        hidden: score of a key that is not seen.
        over: what the softmax sums over: "keys", "queries", "heads" or "nothing" (no softmax at all).
        after: hide keys after the softmax, without dividing again.
    """
    q, k, v = q.double(), k.double(), v.double()
    (num_queries, num_heads, _), (num_tokens, num_kv_heads, _) = q.shape, k.shape
    heads = [kv_head(h, num_heads // num_kv_heads, num_kv_heads) for h in range(num_heads)]
    shift = num_tokens - num_queries
    visible = torch.tensor([[bool(sees(i, j, shift)) for j in range(num_tokens)] for i in range(num_queries)])
    output = torch.zeros(num_queries, num_heads, v.shape[2], dtype=torch.float64)
    scores = torch.stack([scale * (q[:, h] @ k[:, heads[h]].T) for h in range(num_heads)])
    if not after:
        scores = scores.masked_fill(~visible, 0.0 if over == "nothing" else hidden)
    weights = scores if over == "nothing" else scores.softmax({"keys": 2, "queries": 1, "heads": 0}[over])
    for h in range(num_heads):
        output[:, h] = (weights[h] * visible if after else weights[h]) @ v[:, heads[h]]
    return output


def attention_mistakes(q, k, v, scale):
    """What well-known mistakes give for the same tensors."""
    wrong = functools.partial(attention, q, k, v)
    default = q.shape[2] ** -0.5
    right = attention(q, k, v, scale)
    values = v.double()
    group = q.shape[1] // k.shape[1]
    return distinct(right, {
        "Every query sees all keys, also those of tokens that come after its own: the causal mask is missing, or "
        "without effect.": wrong(scale, lambda i, j, s: True),
        "Query 0 sees one key, query 1 two, and so on. But the queries are the last tokens: query i is token "
        "num_tokens - num_queries + i, and sees as many keys more.": wrong(scale, lambda i, j, s: j <= i),
        "A query does not see its own token's key: of tokens, it sees all before it and itself.":
            wrong(scale, lambda i, j, s: j < i + s).nan_to_num(),
        "Every query sees one key too many: that of the token after its own.":
            wrong(scale, lambda i, j, s: j <= i + s + 1),
        "The mask is the other way round: a query sees its own token and those after it.":
            wrong(scale, lambda i, j, s: j >= i + s),
        "The mask is the other way round: a query sees only tokens after its own.":
            wrong(scale, lambda i, j, s: j > i + s),
        "The new tokens see each other, in order, and none of the tokens before them.":
            wrong(scale, lambda i, j, s: s <= j <= i + s),
        "Every query sees its own token's key only.": wrong(scale, lambda i, j, s: j == i + s),
        "The new tokens see all before them and not themselves.": wrong(scale, lambda i, j, s: j < s),
        "The scores were not scaled.": wrong(1.0),
        "The scores were scaled by 1 / sqrt(head_dim), and not by `scale`.": wrong(default),
        "The scores were scaled twice.": wrong(scale * scale),
        "The scores were scaled by `scale`, and by 1 / sqrt(head_dim) once more.": wrong(scale * default),
        "The scores were divided by `scale`.": wrong(1 / scale),
        "The scores were scaled by the root of `scale`.": wrong(scale**0.5),
        "Query head h took KV head h % num_kv_heads. Neighbors share one: it is h // (num_heads // num_kv_heads).":
            wrong(scale, kv_head=lambda h, group, n: h % n),
        "All query heads took KV head 0.": wrong(scale, kv_head=lambda h, group, n: 0),
        "The keys are those of the right KV head, the values those of h % num_kv_heads.":
            attention(q, k.repeat_interleave(group, 1), v.repeat(1, group, 1), scale),
        "The values are those of the right KV head, the keys those of h % num_kv_heads.":
            attention(q, k.repeat(1, group, 1), v.repeat_interleave(group, 1), scale),
        "Hidden keys have the score 0. That is not little: exp(0) is 1. They need -inf.": wrong(scale, hidden=0.0),
        "Hidden keys have the score -1. They need -inf, so that their weight is 0.": wrong(scale, hidden=-1.0),
        "The mask, ones and zeros, was added to the scores. A score is hidden by -inf.":
            added(q, k, v, scale),
        "Keys were hidden after the softmax, so the weights of a query do not sum up to 1 any more.":
            wrong(scale, after=True),
        "The softmax runs over the queries, and should run over the keys.": wrong(scale, over="queries"),
        "The softmax runs over the heads, and should run over the keys.": wrong(scale, over="heads"),
        "The scores are the weights: the softmax is missing.": wrong(scale, over="nothing"),
        "The weights multiply the keys, and should multiply the values.": attention(q, k, k, scale),
        "Keys and values have changed places.": attention(q, v, k, scale),
        "The exponentials are not divided by their sum: the weights of a query have to sum up to 1.":
            weighted(q, k, v, lambda s: (scale * s).exp()),
        "The exponentials less the largest score are not divided by their sum: the weights have to sum up to 1.":
            weighted(q, k, v, lambda s: (scale * s - (scale * s).amax(-1, keepdim=True)).exp()),
        "The weights were scaled, after the softmax, and the scores were not.":
            weighted(q, k, v, lambda s: scale * s.softmax(-1)),
        "A sigmoid was taken of each score, and should be a softmax of a row of them.":
            weighted(q, k, v, lambda s: (scale * s).sigmoid()),
        "The scores were divided by their sum. A softmax takes their exponentials first.":
            weighted(q, k, v, lambda s: (scale * s.nan_to_num(neginf=0)) / (scale * s.nan_to_num(neginf=0)).sum(
                -1, keepdim=True)),
        "The weights are not used: this is the mean of the values that a query sees.": attention(0 * q, k, v, scale),
        "This is the value of the token itself.": values.repeat_interleave(group, 1)[len(k) - len(q) :],
    })  # fmt: skip


def products(q, k):
    """Every query with every key, [num_heads, num_queries, num_tokens], not scaled, and which of them are seen."""
    wide = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    return torch.einsum("qhd,khd->hqk", q, wide), torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q))


def weighted(q, k, v, weights):
    """The values with weights that somebody else makes of the products; those that are not seen are -inf."""
    found, seen = products(q.double(), k.double())
    found = weights(found.masked_fill(~seen, -INF))
    return torch.einsum("hqk,khd->qhd", found, v.double().repeat_interleave(q.shape[1] // k.shape[1], 1))


HIDDEN = "Hidden keys have a score that is low, and not low enough: other scores may be lower still. They need -inf."
WINDOW = "A query sees only the newest keys up to its own, and none of the older ones."
LIMIT = (
    "Large scores were cut off at a limit, and weigh the same from there on. Subtract a row's largest from all of it."
)


def families(q, k, v, scale):
    """Mistakes with a number in them that may be any: sentence and tensor, one after the other."""
    for low in (-5.0, -10.0, -20.0, -50.0, -100.0, -1000.0, -1e4, -65504.0, -1e5):
        for way in (lambda s, low=low: s.nan_to_num(neginf=low / scale), None):
            if way is None:  # added to the score that is there
                found, seen = products(q.double(), k.double())
                found = (scale * found + low * ~seen).softmax(-1)
                yield HIDDEN, torch.einsum("hqk,khd->qhd", found, v.double().repeat_interleave(len(found) // k.shape[1],
                                                                                                1))  # fmt: skip
            else:
                yield HIDDEN, weighted(q, k, v, lambda s, way=way: (scale * way(s)).softmax(-1))
    for size in range(1, len(k)):
        yield WINDOW, attention(q, k, v, scale, lambda i, j, shift, size=size: i + shift - size < j <= i + shift)
    for most in (10, 20, 30, 50, 60, 64, 70, 80, 85, 88, 100):
        for least in (-INF, -most):
            yield LIMIT, weighted(
                q, k, v, lambda s, most=most, least=least: torch.where(s == -INF, s, (scale * s).clamp(least, most))
                .softmax(-1))  # fmt: skip


NAN_OF_SCORES = (
    "There is nan: inf less inf, inf / inf, inf times 0 or 0 / 0 was computed on the way. exp() of a score of some "
    "hundreds is infinite; that of a score less the query's largest one is not."
)


def overflows(q, k, v, scale):
    """What is nan after well-known mistakes, computed in float32 as they do."""
    found, seen = products(q.float(), k.float())
    raw = scale * found
    scores = raw.masked_fill(~seen, -INF)
    ways = {
        "exp() of a score above 88 is infinite, and inf / inf is nan. Subtract each query's largest score first, as "
        "softmax does.": scores.exp(),
        "The largest score of all queries and heads was subtracted. Where all scores of a query are far below it, each "
        "exponential is 0, and 0 / 0 is nan: a query in a head needs its own largest.": (scores - scores.max()).exp(),
        "For all queries of a head the largest score of the head was subtracted. Where all scores of a query are far "
        "below it, each exponential is 0, and 0 / 0 is nan: a query needs its own largest.":
            (scores - scores.amax((1, 2), keepdim=True)).exp(),
        "The largest score was taken of hidden keys, too. Where those that are seen are far below it, each exponential "
        "is 0, and 0 / 0 is nan. Hide keys first.": (raw - raw.amax(-1, keepdim=True)).exp() * seen,
        "A query does not see its own token's key, so the first token sees none, and softmax makes nan of that: it "
        "sees all before it and itself.": raw.masked_fill(~seen.tril(len(k) - len(q) - 1), -INF).softmax(-1),
        "The mask is the other way round: the keys that a query may see are hidden. For the last token these are all, "
        "and softmax makes nan of that.": raw.masked_fill(seen, -INF).softmax(-1),
    }  # fmt: skip
    wide = v.float().repeat_interleave(q.shape[1] // k.shape[1], 1)
    return {text: torch.einsum("hqk,khd->qhd", e / e.sum(-1, keepdim=True), wide) for text, e in ways.items()}


def added(q, k, v, scale):
    """The mask as 1 and 0, added to the scores."""
    one = torch.tensor(1.0, dtype=torch.float64)
    group = q.shape[1] // k.shape[1]
    scores = scale * torch.einsum("qhd,khd->hqk", q.double(), k.double().repeat_interleave(group, 1))
    mask = torch.ones(len(q), len(k)).tril(len(k) - len(q))
    return torch.einsum("hqk,khd->qhd", (scores + one * mask).softmax(-1), v.double().repeat_interleave(group, 1))


RAISED = {
    "RuntimeError": "Two shapes do not go together. q has more heads than k and v: each KV head serves a group. "
    "Heads come second in what is given, and matrix products work on the last two dimensions.",
}


def says_of_half(got, mistakes):
    """The mistake that half-precise numbers are nearest to, if they are near one."""
    found = {text: float((got.double() - other).abs().max() / other.abs().max()) for text, other in mistakes.items()
             if other.shape == got.shape}  # fmt: skip
    nearest = min(found, key=found.get, default="")
    return nearest if nearest and found[nearest] <= 0.03 else ""


def ask_attention(engine, check, q, k, v, scale):
    """Have attention computed, and compare it with what the loops say."""
    function = engine.get("layers.attention:causal_attention")
    kind = "" if q.dtype == torch.float32 else f", {str(q.dtype).removeprefix('torch.')}"
    check.step(
        f"queries of the last {len(q)} of {len(k)} tokens; {q.shape[1]} query heads and {k.shape[1]} KV heads of "
        f"{q.shape[2]}; scale {scale}{kind}",
        RAISED,
    )
    before = [tensor.clone() for tensor in (q, k, v)]
    got = function(q, k, v, scale)
    right, mistakes = attention(*before, scale), dict[str, torch.Tensor]()
    if q.dtype != torch.float32 and isinstance(got, torch.Tensor) and (got.shape, got.dtype) == (right.shape, q.dtype):
        # Which digits are lost depends on the way it was computed.
        far = float((got.double() - right).abs().max() / right.abs().max())
        says = "" if far <= 0.03 else says_of_half(got, attention_mistakes(*before, scale))
        if q.dtype == torch.float16 and got.isnan().any():
            says = "There is nan: a product of query and key was infinite in float16 before it was scaled. Scale the " \
                "query first, or multiply in float32."  # fmt: skip
        check.true("the numbers are right to two digits", far <= 0.03, says)
    else:
        if isinstance(got, torch.Tensor) and got.shape == right.shape and not is_close(got, right):
            if got.isnan().any():
                likely = [text for text, other in overflows(*before, scale).items()
                          if torch.equal(other.isnan(), got.isnan())]  # fmt: skip
                kinds = f"nan in {int(got.isnan().sum())} of {got.numel()} numbers"
                check.equal("output", kinds, "no nan", likely[0] if len(likely) == 1 else
                            NAN_OF_SCORES)  # fmt: skip
                return
            mistakes = attention_mistakes(*before, scale)
            mistakes |= {text: other for text, other in families(*before, scale) if is_close(got, other)}
        check_tensor(check, "output", got, right, ("query", "head", "feature"), mistakes, dtype=q.dtype)
    same = all(torch.equal(one, other) for one, other in zip((q, k, v), before, strict=True))
    check.true("q, k and v are as they were", same, "They are only read, and one of them has changed.")


def is_close(got, other):
    """Whether two tensors are the same to four digits of the largest number."""
    return bool((got.double() - other.double()).abs().max() <= 1e-4 * other.double().abs().max())


def heads(num_queries, num_tokens, num_heads, num_kv_heads, head_dim, seed=0, spread=1.5):
    return (
        numbers(num_queries, num_heads, head_dim, seed=seed, spread=spread),
        numbers(num_tokens, num_kv_heads, head_dim, seed=seed + 1, spread=spread),
        numbers(num_tokens, num_kv_heads, head_dim, seed=seed + 2, spread=spread),
    )


def is_right_elsewhere(engine):
    """Whether an everyday question is answered right; what is wrong there, too, other cases tell."""
    plain = heads(3, 7, 4, 2, 3, seed=10)
    got, right = engine.get("layers.attention:causal_attention")(*plain, 0.4), attention(*plain, 0.4)
    return isinstance(got, torch.Tensor) and got.shape == right.shape and is_close(got, right)


@case("ch10.causal_attention")
def a_prompt(engine: Engine, check: Check) -> None:
    """A prompt of five tokens, read in one piece: as many queries as keys. Four query heads, two KV heads."""
    ask_attention(engine, check, *heads(5, 5, 4, 2, 3), 0.4)


@case("ch10.causal_attention")
def a_prefix(engine: Engine, check: Check) -> None:
    """Three tokens are new, and four before them are cached: fewer queries than keys."""
    ask_attention(engine, check, *heads(3, 7, 4, 2, 3, seed=10), 0.4)


@case("ch10.causal_attention")
def a_decode(engine: Engine, check: Check) -> None:
    """A decode step: one query, six keys, six query heads on two KV heads."""
    ask_attention(engine, check, *heads(1, 6, 6, 2, 4, seed=20), 0.4)


@case("ch10.causal_attention")
def no_groups(engine: Engine, check: Check) -> None:
    """Every query head has a KV head of its own, and there are three."""
    ask_attention(engine, check, *heads(2, 5, 3, 3, 4, seed=30), 0.7)


@case("ch10.causal_attention")
def one_for_all(engine: Engine, check: Check) -> None:
    """All four query heads share one KV head."""
    ask_attention(engine, check, *heads(4, 6, 4, 1, 2, seed=40), 0.6)


@case("ch10.causal_attention")
def the_first_token(engine: Engine, check: Check) -> None:
    """A single token sees itself only."""
    ask_attention(engine, check, *heads(1, 1, 4, 2, 3, seed=50), 0.5)


@case("ch10.causal_attention")
def far_apart(engine: Engine, check: Check) -> None:
    """Two heads: all scores of the one are near 60, all of the other near -60."""
    q, k, v = heads(3, 5, 2, 1, 2, seed=65)
    q, k = torch.tensor([[[6.0, 0.1], [-6.0, 0.2]]]).repeat(3, 1, 1), torch.cat((k[..., :1] / 8 + 20, k[..., 1:]), -1)
    ask_attention(engine, check, q, k, v, 0.5)


@case("ch10.causal_attention")
def large_scores(engine: Engine, check: Check) -> None:
    """Scores of some hundreds: exp() of such numbers is infinite, their softmax is not."""
    q, k, v = heads(4, 6, 4, 2, 4, seed=60)
    ask_attention(engine, check, 40 * q, 5 * k, v, 0.5)


@case("ch10.causal_attention")
def huge_scores(engine: Engine, check: Check) -> None:
    """Scores of some ten thousands, above and below 0."""
    q, k, v = heads(4, 6, 4, 2, 4, seed=60)
    ask_attention(engine, check, 400 * q, 100 * k, v, 0.5)


@case("ch10.causal_attention")
def views(engine: Engine, check: Check) -> None:
    """Parts of larger tensors, in which rows do not lie side by side."""
    q, k, v = heads(4, 6, 4, 2, 4, seed=70)
    q, k, v = (torch.cat((x, x), 1)[:, : x.shape[1]] for x in (q, k, v))
    ask_attention(engine, check, q.transpose(0, 1).contiguous().transpose(0, 1), k, v, 0.5)


@case("ch10.causal_attention")
def half_precision(engine: Engine, check: Check) -> None:
    """bfloat16 comes, and bfloat16 goes back."""
    q, k, v = (x.bfloat16() for x in heads(3, 5, 4, 2, 8, seed=80))
    ask_attention(engine, check, q, k, v, 0.35)


@case("ch10.causal_attention")
def in_float16(engine: Engine, check: Check) -> None:
    """float16, which ends at 65,504: query times key is more than that, and the score, scaled, is not."""
    q, k, v = (x.half() for x in heads(2, 4, 2, 1, 4, seed=85))
    k = torch.tensor([-200.0, 100.0, 200.0, 300.0])[:, None, None].repeat(1, 1, 4).half()
    q = torch.tensor([256.0, -256.0])[None, :, None].repeat(2, 1, 4).half()
    if is_right_elsewhere(engine):
        ask_attention(engine, check, q, k, v, 0.001)


@case("ch10.causal_attention")
def many_tokens(engine: Engine, check: Check) -> None:
    """Nine new tokens behind 24, eight query heads on two KV heads."""
    ask_attention(engine, check, *heads(9, 33, 8, 2, 16, seed=90, spread=1.0), 0.25)


# merge_tile


def softmax_so_far(tiles):
    """Maximum, total and output for all keys of some tiles [(scores, values), ...], a key at a time, in float64."""
    num_queries, head_dim = len(tiles[0][0]), tiles[0][1].shape[1]
    seen = [
        [(float(scores[i, j]), values[j].double()) for scores, values in tiles for j in range(scores.shape[1])
         if scores[i, j] != -INF]
        for i in range(num_queries)
    ]  # fmt: skip
    maximum = [max((score for score, _ in row), default=-INF) for row in seen]
    total = [math.fsum(math.exp(score - top) for score, _ in row) for row, top in zip(seen, maximum, strict=True)]
    output = torch.zeros(num_queries, head_dim, dtype=torch.float64)
    for i, row in enumerate(seen):
        for score, value in row:
            output[i] += math.exp(score - maximum[i]) * value
    as_tensor = functools.partial(torch.tensor, dtype=torch.float64)
    return as_tensor(maximum), as_tensor(total), output


def merge_mistakes(scores, values, maximum, total, output):
    """By name of the tensor: what well-known mistakes give."""
    scores, values, maximum, total, output = (x.double() for x in (scores, values, maximum, total, output))
    top = scores.amax(1)
    new = torch.maximum(maximum, top)
    safe = new.masked_fill(new == -INF, 0)
    weights, decay = (scores - safe[:, None]).exp(), (maximum - safe).exp()
    raw = scores.exp()
    by_tile = (scores - top.masked_fill(top == -INF, 0)[:, None]).exp()
    nan = torch.full_like(new, math.nan)
    by_old = torch.where(maximum[:, None] == -INF, nan[:, None], (scores - maximum[:, None]).exp())
    backwards = torch.where(maximum == -INF, nan, (safe - maximum).exp())
    again = "when the maximum grows, what was summed up before has to shrink by exp(old maximum - new maximum)"
    ways = {
        f"The old sum was not scaled: {again}.": (weights, torch.ones_like(decay)),
        f"The old sum grows instead of shrinking: {again}.": (weights, backwards),
        "The old sum is not in it: it was replaced by that of the new tile.": (weights, torch.zeros_like(decay)),
        "The old sum was shrunk, and the new tile is not in it.": (0 * weights, decay),
        "The new scores' exponentials are not taken less the maximum."
        if raw.any()
        else "All new weights are 0. Of a tile with the largest score so far, one is exp(0): what was subtracted is "
        "not the largest.": (raw, decay),
        "The new weights are taken less the maximum of their own tile, not less that of all keys so far.":
            (by_tile, decay),
        "The new weights are taken less the maximum of their own tile, and the old sum was not scaled.":
            (by_tile, torch.ones_like(decay)),
        "The new weights are taken less the old maximum.": (by_old, decay),
        "The new weights are taken less the old maximum, and the old sum was not scaled.":
            (by_old, torch.ones_like(decay)),
        "The scores themselves were summed up, and not their exponentials.": (scores, decay),
        "The old sum was scaled twice.": (weights, decay * decay),
        "The old sum was multiplied by the difference of the maxima, and not by its exponential.":
            (weights, maximum - safe),
    }  # fmt: skip
    totals = {text: total * d + w.sum(1) for text, (w, d) in ways.items()}
    outputs = {text: output * d[:, None] + w @ values for text, (w, d) in ways.items()}
    right_total = total * decay + weights.sum(1)
    right_output = output * decay[:, None] + weights @ values
    divided = right_total.clamp_min(1e-30)[:, None]
    old = output / total.clamp_min(1e-30)[:, None]
    totals["The new total is the mean of the weights, and should be their sum."] = total * decay + weights.mean(1)
    totals["The weights of the tile are a softmax of it alone, so that their sum is 1."] = total * decay + 1.0
    totals["Powers of 2 were taken, and not of e: exp(x) is e to the power of x."] = total * (
        decay.log() * LOG_2
    ).exp() + (weights.log() * LOG_2).exp().sum(1)
    outputs["The values were averaged, and each should count with its own weight."] = output * decay[
        :, None
    ] + weights.sum(1)[:, None] * values.mean(0)
    outputs["The values were summed up without their weights."] = output * decay[:, None] + values.sum(0)
    outputs["Powers of 2 were taken, and not of e: exp(x) is e to the power of x."] = (
        output * (decay.log() * LOG_2).exp()[:, None] + (weights.log() * LOG_2).exp() @ values
    )
    totals["The weights were summed over all queries, too. A total is one number a query: the sum over its keys."] = (
        total * decay + weights.sum()
    )
    grows = new > maximum
    if grows.any() and not grows.all():
        text = "Where the tile has no new largest score, nothing was added to the old sum: its keys count all the same."
        totals[text] = torch.where(grows, right_total, total)
        outputs[text] = torch.where(grows[:, None], right_output, output)
    totals["A new weight counts as one key: the keys were counted."] = total * decay + (scores > -INF).sum(1)
    outputs["The output is divided by the total already. It stays a sum until all keys are in."] = (
        right_output / divided
    )
    if (output != 0).any():  # else they are the same as the former
        outputs["The new weights are divided by their sum: a softmax of the tile alone was added."] = (
            output * decay[:, None] + (weights @ values) / weights.sum(1).clamp_min(1e-30)[:, None]
        )
        outputs["The weights are divided by the new total."] = output * decay[:, None] + (weights @ values) / divided
    outputs["The old output was taken for a mean, and divided by the old total."] = (
        old * decay[:, None] + weights @ values
    )
    never_below = new.clamp(min=0.0) if bool((new[new > -INF] < 0).any()) else None
    maxima = {
        "It is the maximum of this tile alone. A larger score may have come before.": top,
        "The maximum is still the old one.": maximum,
        "It is the smaller one of the two maxima.": torch.minimum(maximum, top),
        "The two maxima were added.": maximum + top,
        "It is never below 0, and scores may be. Before the first tile the maximum is -inf.": never_below,
        "A query that has seen no key yet got the maximum 0. Its maximum stays -inf, which is below every score.": (
            new.masked_fill(new == -INF, 0.0)
        ),
        "This is the total. The three come back as maximum, total, output.": right_total,
        "It is the largest absolute value: a score far below 0 is not large.": torch.maximum(
            maximum, scores.abs().masked_fill(scores == -INF, -INF).amax(1)
        ),
        "One maximum for all queries: it has to be taken for each.": torch.full_like(new, float(new.max())),
    }
    hidden = (scores == -INF).all(1)
    waits = "All queries have kept what they had, though only some of them see no key of this tile."
    if hidden.any() and not hidden.all():
        maxima = {text: x for text, x in maxima.items() if x is not None and not torch.equal(x, maximum)}
        maxima[waits] = maximum
        totals[waits], outputs[waits] = total, output
        only = (
            (scores - torch.where(hidden, 0.0, safe)[:, None]).exp(),
            (maximum - torch.where(hidden, 0.0, safe)).exp(),
        )
        text = "For a query that sees no key of this tile the old sum was scaled by exp(maximum), as if the new were 0."
        totals[text] = total * only[1] + only[0].sum(1)
        outputs[text] = output * only[1][:, None] + only[0] @ values
    return (
        distinct(new, maxima),
        distinct(right_total, {text: x for text, x in totals.items() if bool((total != 0).any()) or "old" not in text}),
        distinct(right_output, {t: x for t, x in outputs.items() if bool((output != 0).any()) or "old" not in t}),
    )


LOG_2 = math.log(2.0)
MERGE_RAISED = {
    "RuntimeError": "Two shapes do not go together. maximum and total have one number a query, scores and output a row "
    "a query: [:, None] makes a column of the former, and amax(1) takes the largest of each row.",
    "IndexError": "A dimension was asked for that is not there: maximum and total have one dimension, the queries.",
}


NAN_UNSEEN = "There is nan, and a query that has seen no key yet: -inf - -inf is nan. Subtract something finite there."
NAN_LARGE = (
    "There is nan: exp() of a score above 88 is infinite, and inf times 0, inf less inf or inf / inf is nan; or exp() "
    "of each was 0, and 0 / 0 is nan. No exponential is to be taken but of a difference to the largest score so far."
)


def ask_merge(engine, check, tiles):
    """Give tiles one after the other, and look at what is known after each."""
    merge = engine.get("labs:merge_tile")
    num_queries, head_dim = len(tiles[0][0]), tiles[0][1].shape[1]
    state = (torch.full((num_queries,), -INF), torch.zeros(num_queries), torch.zeros(num_queries, head_dim))
    check.step(f"{num_queries} queries, values of {head_dim} numbers, nothing seen yet")
    for number, (scores, values) in enumerate(tiles):
        rows = ", ".join(str([round(x, 2) for x in row]) for row in scores.tolist())
        check.step(f"tile {number}: scores {rows if len(rows) < 110 else list(scores.shape)}", MERGE_RAISED)
        before = [x.clone() for x in (scores, values, *state)]
        got = merge(scores, values, *state)
        if not check.true("three things came back", isinstance(got, tuple | list) and len(got) == 3,
                          "The new maximum, total and output are to come back, as a tuple."):  # fmt: skip
            return
        right = softmax_so_far(tiles[: number + 1])
        wrong = merge_mistakes(*before)
        is_right = True
        for name, found, wanted, axes, mistakes in zip(
            ("maximum", "total", "output"), got, right, (("query",), ("query",), ("query", "feature")), wrong,
            strict=True,
        ):  # fmt: skip
            what = f"{name} after tile {number}"
            if isinstance(found, torch.Tensor) and found.shape == wanted.shape and name == "maximum":
                is_right &= check_maximum(check, what, found, wanted, mistakes)
            else:
                if isinstance(found, torch.Tensor) and found.isnan().any():
                    unseen = bool((torch.stack((before[2], before[0].amax(1))) == -INF).all(0).any())
                    check.equal(what, "has nan in it", "as it should be", NAN_UNSEEN if unseen else NAN_LARGE)
                    is_right = False
                    continue
                is_right &= check_tensor(check, what, found, wanted, axes, mistakes, dtype=torch.float32)
        given = {x.data_ptr() for x in state}
        again = [name for name, x in zip(("maximum", "total", "output"), got, strict=True)
                 if isinstance(x, torch.Tensor) and x.data_ptr() in given]  # fmt: skip
        same = all(torch.equal(a, b) for a, b in zip((scores, values, *state), before, strict=True))
        check.true(f"what was given for tile {number} is as it was", same,
                   "A tensor that was given has changed. New ones are asked for: += changes the old one.")  # fmt: skip
        check.equal(f"what came back after tile {number} and is no new tensor", again, [],
                    "A tensor that was given has come back. New ones are asked for: .clone() makes one.")  # fmt: skip
        if not (is_right and same) or again:
            return
        state = tuple(got)


def check_maximum(check, what, found, wanted, mistakes):
    """As check_tensor, where -inf is a right number."""
    kind = str(found.dtype).removeprefix("torch.")
    if not check.equal(f"dtype of {what}", kind, "float32", f"It should be float32, and is {kind}."):
        return False
    difference = describe(found, wanted, ("query",))
    if difference and found.isnan().any():
        return check.equal(what, difference, "as it should be", "There is nan among the maxima.")
    likely = next((text for text, other in mistakes.items() if torch.allclose(found.double(), other)), "")
    if difference and not likely and (found[wanted == -INF] > -INF).any():
        likely = "A query that has seen no key yet got a maximum that is not -inf: it stays -inf, below every score."
    if difference and not likely and wanted.isfinite().all() and found.isfinite().all():
        likely = looks_like(found, wanted, ("query",))
    return check.equal(what, difference or "as it should be", "as it should be", likely)


@case("ch10.merge_tile")
def two_tiles(engine: Engine, check: Check) -> None:
    """Two queries and two tiles of three keys: for the first query the second tile is larger, for the other smaller."""
    first, second = torch.tensor([[0.5, 1.0, -0.5], [2.0, 0.0, 1.5]]), torch.tensor([[2.5, 0.0, 1.0], [0.5, -1.0, 1.0]])
    ask_merge(engine, check, [(first, numbers(3, 2)), (second, numbers(3, 2, seed=1))])


@case("ch10.merge_tile")
def small_and_large(engine: Engine, check: Check) -> None:
    """Scores of hundreds, above and below 0: exp() of the former is infinite, of the latter 0."""
    tiles = [torch.tensor([[-300.0, -301.0], [400.0, 399.0]]), torch.tensor([[500.0, 499.5], [401.0, -20.0]]),
             torch.tensor([[501.0, 3.0], [-500.0, 400.5]])]  # fmt: skip
    ask_merge(engine, check, [(scores, numbers(2, 4, seed=i)) for i, scores in enumerate(tiles)])


@case("ch10.merge_tile")
def hidden_keys(engine: Engine, check: Check) -> None:
    """A query that sees no key of the first tile, and one that sees none of the second."""
    first = torch.tensor([[-INF, -INF, -INF], [0.3, -INF, 1.2]])
    second = torch.tensor([[0.7, -INF, -0.2], [-INF, -INF, -INF]])
    third = torch.tensor([[1.7, 0.2, -INF], [-0.4, 2.0, 0.1]])
    ask_merge(engine, check, [(scores, numbers(3, 2, seed=i)) for i, scores in enumerate((first, second, third))])


@case("ch10.merge_tile")
def nobody_looks(engine: Engine, check: Check) -> None:
    """A tile that neither query may see, between two others."""
    tiles = [torch.tensor([[0.5, 1.5], [2.0, -1.0]]), torch.full((2, 2), -INF), torch.tensor([[2.0, 0.5], [1.0, 3.0]])]
    ask_merge(engine, check, [(scores, numbers(2, 3, seed=i)) for i, scores in enumerate(tiles)])


@case("ch10.merge_tile")
def far_below(engine: Engine, check: Check) -> None:
    """Scores some millions below 0."""
    tiles = [torch.tensor([[-3000001.0, -3000000.5]]), torch.tensor([[-3000002.0, -2999999.5, -3000000.0]])]
    ask_merge(engine, check, [(scores, numbers(scores.shape[1], 3, seed=i)) for i, scores in enumerate(tiles)])


@case("ch10.merge_tile")
def below_zero(engine: Engine, check: Check) -> None:
    """All scores are below 0, and the tiles have different sizes, of which one is a single key."""
    tiles = [torch.tensor([[-1.0, -2.0, -4.0]]), torch.tensor([[-3.0]]), torch.tensor([[-0.5, -2.5]])]
    ask_merge(engine, check, [(scores, numbers(scores.shape[1], 3, seed=i)) for i, scores in enumerate(tiles)])


@case("ch10.merge_tile")
def many_tiles(engine: Engine, check: Check) -> None:
    """Five queries, six tiles of eight keys."""
    tiles = [(numbers(5, 8, seed=i, spread=2), numbers(8, 4, seed=10 + i)) for i in range(6)]
    ask_merge(engine, check, tiles)


# decode_kernel


def looked_up(cache, table, num_tokens):
    """The rows of a sequence's tokens, one after the other."""
    return torch.stack([cache[table[i // cache.shape[1]], i % cache.shape[1]] for i in range(num_tokens)])


def kernel_mistakes(q, k_cache, v_cache, table, num_tokens, scale):
    """What well-known mistakes write, where they stay inside of the tensors."""
    size = k_cache.shape[1]
    k, v = (looked_up(cache, table, num_tokens) for cache in (k_cache, v_cache))
    full = len(table) * size

    def of(keys, values, scale=scale, **options):
        return attention(q[None], keys, values, scale, sees=lambda i, j, s: True, **options)[0] if len(keys) else None

    def rows(lookup, count):
        """Attention to the rows that somebody else's lookup finds."""
        if count < 1 or any(not 0 <= b < len(k_cache) for b in lookup):
            return None
        return of(looked_up(k_cache, lookup, count), looked_up(v_cache, lookup, count))

    k_all, v_all = (looked_up(cache, table, full) for cache in (k_cache, v_cache))
    zeros = torch.zeros(full - num_tokens, *k.shape[1:])
    blocks = [range(first, min(num_tokens, first + size)) for first in range(0, num_tokens, size)]
    scores = torch.stack(
        [scale * (q[h].double() @ k[:, h // (len(q) // k.shape[1])].double().T) for h in range(len(q))]
    )
    wide_v = v.double().repeat_interleave(len(q) // k.shape[1], 1)

    def by_blocks(weights, top, shrink_total=True, shrink_output=True):
        """The running sums with parts of the scaling left out; `weights` and `top` of a block of scores."""
        maximum = torch.full((len(q),), -INF, dtype=torch.float64)
        total, output = torch.zeros(len(q), dtype=torch.float64), torch.zeros(*q.shape, dtype=torch.float64)
        for block in blocks:
            part = scores[:, list(block)]
            new = top(maximum, part)
            decay, w = (maximum - new).exp(), weights(part, new)
            total = total * (decay if shrink_total else 1) + w.sum(1)
            output = output * (decay[:, None] if shrink_output else 1) + torch.einsum(
                "ht,thd->hd", w, wide_v[list(block)]
            )
            maximum = new
        return total, output

    def divided(again):
        maximum = torch.full((len(q),), -INF, dtype=torch.float64)
        total, output = torch.zeros(len(q), dtype=torch.float64), torch.zeros(*q.shape, dtype=torch.float64)
        for block in blocks:
            part = scores[:, list(block)]
            new = torch.maximum(maximum, part.amax(1))
            decay, w = (maximum - new).exp(), (part - new[:, None]).exp()
            total = total * decay + w.sum(1)
            output = output * decay[:, None] + torch.einsum("ht,thd->hd", w, wide_v[list(block)])
            output, maximum = output / total[:, None], new
        return output / total[:, None] if again else output

    def larger(maximum, part):
        return torch.maximum(maximum, part.amax(1))

    def less(part, new):
        return (part - new[:, None]).exp()

    total, output = by_blocks(less, larger)
    total_kept, _ = by_blocks(less, larger, shrink_total=False)
    _, output_kept = by_blocks(less, larger, shrink_output=False)
    own_total, own_output = by_blocks(less, lambda maximum, part: part.amax(1))
    unshrunk = by_blocks(less, lambda maximum, part: part.amax(1), False, False)
    means = [of(k[list(block)], v[list(block)]) for block in blocks]
    swapped = k_cache.transpose(1, 2).reshape(k_cache.shape), v_cache.transpose(1, 2).reshape(v_cache.shape)
    return distinct(of(k, v), {
        "Block i of the cache was read as block number i of the sequence. The table says which it is.":
            rows(range(len(table)), num_tokens),
        COUNTED_TWICE: rows([block + i for i, block in enumerate(table)], num_tokens),
        "All blocks were read from the table's first entry.": rows(table[:1] * len(table), num_tokens),
        "The places behind the last token were read, too: their scores have to be -inf.": of(k_all, v_all),
        "In the places behind the last token the score is 0, and exp(0) is 1: it has to be -inf.":
            of(torch.cat((k, zeros)), torch.cat((v, zeros))),
        "In the places behind the last token the score is 0, and their values were read: it has to be -inf.":
            of(torch.cat((k, zeros)), v_all),
        "The last block is missing: it is not full, and counts all the same.":
            rows(table, num_tokens // size * size) if num_tokens % size else None,
        "Only the first block was read.": means[0],
        "Only the last block is in it.": means[-1],
        "The last token is missing.": rows(table, num_tokens - 1),
        "One token too many was read.": rows(table, num_tokens + 1) if num_tokens < full else None,
        "The scores were not scaled.": of(k, v, 1.0),
        "The scores were scaled by 1 / sqrt(HEAD_DIM), and not by `scale`.": of(k, v, q.shape[1] ** -0.5),
        "The scores were scaled twice.": of(k, v, scale * scale),
        "Powers of 2 were taken, and not of e: here it is tl.exp. (The engine's tl.exp2 goes with scores that have "
        "a factor log2(e).)": of(k, v, scale * LOG_2),
        "The query was read from q_ptr + head on, without * HEAD_DIM: head h has its own row of HEAD_DIM numbers.":
            attention(shifted(q)[None], k, v, scale, sees=lambda i, j, s: True)[0],
        "The output was written from o_ptr + head on, without * HEAD_DIM: head h has its own row of HEAD_DIM numbers.":
            overwritten(of(k, v)),
        "Query and output begin at + head, without * HEAD_DIM: head h has its own row of HEAD_DIM numbers.":
            overwritten(attention(shifted(q)[None], k, v, scale, sees=lambda i, j, s: True)[0]),
        "The output was divided after each block, and then went on as if it were a sum.": divided(False),
        "The output was divided after each block, as if it were a sum, and once more at the end.": divided(True),
        "Query head h took KV head h % KV_HEADS. It is h // GROUP.": of(k, v, kv_head=lambda h, group, n: h % n),
        "All query heads took KV head 0.": of(k, v, kv_head=lambda h, group, n: 0),
        "The weights multiply the keys, and should multiply the values.": of(k, k),
        "Keys and values have changed places.": of(v, k),
        "The sum was not divided by the total of the weights.": output,
        "The sum was divided by the number of tokens, and not by the total of the weights.": output / num_tokens,
        "The old total was not scaled when a larger score came.": output / total_kept[:, None],
        "The old output was not scaled when a larger score came.": output_kept / total[:, None],
        "Neither the old total nor the old output was scaled when a larger score came.":
            output_kept / total_kept[:, None],
        "The maximum is that of the newest block alone: a larger score may have come before.":
            own_output / own_total[:, None],
        "Each block has its own maximum, and the sums of blocks were added without scaling.":
            unshrunk[1] / unshrunk[0][:, None],
        "The outputs of the blocks, each of them divided, were added.": sum(means),
        "It is the mean of the blocks' outputs: each counts the same, whatever its weights are.":
            sum(means) / len(means),
        "Several heads were written to the same row of the output: head h has its own, from h * HEAD_DIM on.":
            in_one_row(of(k, v), k.shape[1]),
        "The cache was read as [block, KV head, place, feature]. It is [block, place, KV head, feature].":
            of(*(looked_up(cache, table, num_tokens) for cache in swapped)),
    })  # fmt: skip


def shifted(q):
    """Rows that begin one number after the other."""
    return torch.stack([q.flatten()[head : head + q.shape[1]] for head in range(len(q))])


def overwritten(output):
    """Rows that were written one number after the other, into an output that was full of 7."""
    found = torch.full_like(output, 7.0).flatten()
    for head, row in enumerate(output):
        found[head : head + len(row)] = row
    return found.view(output.shape)


def in_one_row(output, num_kv_heads):
    """The heads of a group one over another, in an output that was full of 7."""
    found = torch.full_like(output, 7.0)
    for head, row in enumerate(output):
        found[head // (len(output) // num_kv_heads)] = row
    return found


KERNEL_RAISED = {
    "NameError": "A name is not there. Of Triton `tl` is there, and no more is needed; a function that you call has to "
    "stand above your kernel, as a helper of yours.",
    "LanguageError": "A kernel is no Python program: a GPU's compiler translates it, and knows no library but tl, "
    "for example tl.exp, tl.sum and tl.maximum.",
    "ShapeError": "A variable keeps its shape in a loop: a GPU's compiler asks for that. Begin a row of sums with "
    "tl.zeros([HEAD_DIM], tl.float32).",
    "OutsideError": "It reads or writes beside a tensor. Loads of places behind the last token want a mask; an offset "
    "counts single numbers, so a row has to be multiplied by all that lies in it.",
    "InterpreterError": "The interpreter of Triton has stopped: the reason is above.",
}


COUNTED_TWICE = (
    "A block begins at row block * BLOCK_SIZE, and its places count from 0 in each. Here the position in the whole "
    "sequence was added: of that only the rest counts, position % BLOCK_SIZE."
)


BESIDE_THE_TABLE = (
    "The table was read behind its end. It has an entry for each block, and none for a token: tl.load(table_ptr + i) "
    "wants the number of a block in the sequence, from 0 to tl.cdiv(num_tokens, BLOCK_SIZE) - 1."
)
SHAPES_IN_KERNEL = (
    "Two shapes do not go together: one has a number for each place of a block, the other for each feature. Summing a "
    "tile over axis=1 leaves the places, over axis=0 the features."
)


def first_outside(table, num_tokens, size, num_kv_heads, head_dim, num_blocks):
    """The first number beside the cache that head 0 reads with positions in the place of places; None if there is none.

    A tile is read at once, so of each the first that is outside counts.
    """
    for i, block in enumerate(table):
        places = range(i * size, min(num_tokens, (i + 1) * size))
        numbers = [(block * size + place) * num_kv_heads * head_dim for place in places]
        numbers = [number + feature for number in numbers for feature in range(head_dim)]
        if outside := [number for number in numbers if number >= num_blocks * size * num_kv_heads * head_dim]:
            return outside[0]
    return None


NAN_UNDEFINED = (
    "Where a load is masked and has no `other`, anything may come; here it is nan, and nan times a weight of 0 is nan. "
    "other=0.0 makes it 0."
)
NAN = "There is nan: inf less inf, inf / inf or 0 / 0 was computed on the way."
NAN_NEAR_200 = (
    "There is nan where all scores are near 200: exp() of that is infinite. The largest score so far has to be "
    "subtracted first."
)
NAN_RISING = (
    "There is nan where the second block has far larger scores than the first: exp() of the difference is infinite. "
    "With each block the maximum has to become the larger one of the old and the block's."
)
NAN_FALLING = (
    "There is nan where the second block has far smaller scores than the first. The maximum is that of all blocks so "
    "far: it never becomes smaller."
)
NAN_BELOW = (
    "All scores are far below 0 here, so that exp() of each is 0, and 0 / 0 is nan: the largest score is to be "
    "subtracted, and before the first block the maximum is -inf, not 0."
)


@contextlib.contextmanager
def patched(values, **others):
    """Other values in a dict for a while."""
    before = values.copy()
    values.update(others)
    try:
        yield
    finally:
        values.update(before)


def ask_kernel(engine, check, num_heads, num_kv_heads, head_dim, size, table, num_tokens, scale, seed=0, spread=1.5,
               high=1.0, interpret=False, below=False, levels=None, says_nan=NAN):  # fmt: skip
    """Launch the kernel, a program for each head, and compare what it has written.

    Args:
        levels: about how high the scores are in each block of the table.
    """
    kernel = engine.get("labs:decode_kernel")
    num_blocks = max(table) + 2
    shape = (num_blocks, size, num_kv_heads, head_dim)
    q = numbers(num_heads, head_dim, seed=seed, spread=spread) * high
    k_cache, v_cache = (numbers(*shape, seed=seed + i, spread=spread) for i in (1, 2))
    if below:  # all scores are below 0
        q, k_cache = -q.abs(), k_cache.abs()
    if levels:
        q[:, 0] = 10.0
        for block, level in zip(table, levels, strict=True):
            k_cache[block, :, :, 0] = level / (10.0 * scale)
    tensors = {
        "q_ptr": q,
        "k_ptr": k_cache,
        "v_ptr": v_cache,
        "table_ptr": torch.tensor(table, dtype=torch.int32),
        "o_ptr": torch.full_like(q, 7.0),
    }
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    check.step(
        f"{num_tokens} tokens in blocks of {size}, table {table}; {num_heads} query heads, {num_kv_heads} KV "
        f"heads of {head_dim}; scale {scale}",
        KERNEL_RAISED,
    )
    sizes = {"GROUP": num_heads // num_kv_heads, "KV_HEADS": num_kv_heads, "HEAD_DIM": head_dim}
    sizes |= {"num_tokens": num_tokens, "scale": scale, "BLOCK_SIZE": size}
    try:
        kernel_work.launch(kernel, num_heads, tensors, interpret, **sizes)
    except kernel_work.OutsideError as error:
        outside = first_outside(table, num_tokens, size, num_kv_heads, head_dim, num_blocks)
        if f"number {outside} is read" in str(error):
            check.step("a number beside the cache is read", {"OutsideError": COUNTED_TWICE})
        if str(error).startswith("table_ptr"):
            check.step(f"the table has {len(table)} entries", BESIDE_THE_TABLE)
        raise
    except Exception as error:
        if any(words in f"{error} {error.__cause__}" for words in ("incompatible dimensions", "must match the size")):
            check.step(f"a tile has {size} places of {head_dim} features", SHAPES_IN_KERNEL)
        raise
    k, v = (looked_up(cache, table, num_tokens) for cache in (k_cache, v_cache))
    right = attention(q[None], k, v, scale)[0]
    mistakes = {}
    if not is_close(tensors["o_ptr"], right):
        mistakes = kernel_mistakes(q, k_cache, v_cache, table, num_tokens, scale)
    mistakes["The output is as it was before: nothing was stored."] = before["o_ptr"]
    if tensors["o_ptr"].isnan().any():
        filled = {name: tensor.clone() for name, tensor in before.items()}
        with patched(kernel_work.UNDEFINED, float=0.0):
            kernel_work.launch(kernel, num_heads, filled, False, **sizes)
        says = NAN_BELOW if below else says_nan
        check.equal("output", "has nan in it", "no nan", says if filled["o_ptr"].isnan().any() else NAN_UNDEFINED)
        return
    check_tensor(check, "output", tensors["o_ptr"], right, ("head", "feature"), mistakes, dtype=torch.float32)
    changed = [name for name, old in before.items() if name != "o_ptr" and not torch.equal(old, tensors[name])]
    check.equal("tensors that have changed, other than the output", changed, [],
                "The kernel has written into a tensor that is only to be read.")  # fmt: skip


@case("ch10.decode_kernel")
def one_full_block(engine: Engine, check: Check) -> None:
    """Four tokens fill one block, which is not the first of the cache. Two query heads of 8, one KV head."""
    ask_kernel(engine, check, 2, 1, 8, 4, [2], 4, 0.6)


@case("ch10.decode_kernel")
def three_blocks(engine: Engine, check: Check) -> None:
    """Ten tokens in three blocks, in no order; the last block is half full. Four query heads, two KV heads."""
    ask_kernel(engine, check, 4, 2, 8, 4, [4, 1, 3], 10, 0.4, seed=10, interpret=True)


@case("ch10.decode_kernel")
def full_to_the_end(engine: Engine, check: Check) -> None:
    """Eight tokens fill two blocks to the end; six query heads on two KV heads."""
    ask_kernel(engine, check, 6, 2, 4, 4, [3, 0], 8, 0.7, seed=20)


@case("ch10.decode_kernel")
def a_single_token(engine: Engine, check: Check) -> None:
    """One token in a block of eight."""
    ask_kernel(engine, check, 2, 1, 4, 8, [1], 1, 0.5, seed=30)


@case("ch10.decode_kernel")
def blocks_of_two(engine: Engine, check: Check) -> None:
    """Thirteen tokens in seven blocks of two; three KV heads without groups."""
    ask_kernel(engine, check, 3, 3, 4, 2, [8, 2, 7, 0, 5, 1, 4], 13, 0.5, seed=40)


@case("ch10.decode_kernel")
def high_and_low_blocks(engine: Engine, check: Check) -> None:
    """Two blocks, of which both have scores near 200, or only the second, or only the first."""
    for levels, says in (([200, 200], NAN_NEAR_200), ([0, 200], NAN_RISING), ([200, 0], NAN_FALLING)):
        ask_kernel(engine, check, 2, 1, 8, 4, [2, 0], 7, 0.5, seed=45, levels=levels, says_nan=says)


@case("ch10.decode_kernel")
def high_scores(engine: Engine, check: Check) -> None:
    """Scores of some hundreds."""
    ask_kernel(engine, check, 2, 1, 8, 4, [2, 0, 3], 11, 0.5, seed=51, high=100.0)


@case("ch10.decode_kernel")
def all_below_zero(engine: Engine, check: Check) -> None:
    """All scores are some hundreds below 0."""
    ask_kernel(engine, check, 2, 1, 8, 4, [2, 0, 3], 11, 0.5, seed=55, high=100.0, below=True)


@case("ch10.decode_kernel")
def as_in_the_model(engine: Engine, check: Check) -> None:
    """Heads as those of the bundled model: four query heads, two KV heads of 64, 37 tokens in blocks of 16."""
    ask_kernel(engine, check, 4, 2, 64, 16, [3, 0, 2], 37, 0.125, seed=60, spread=1.0, interpret=True)


# choose_blocks


MORE_THAN_ALL = "The budget may be more than there are blocks; then all may be read, and no others are there."


def ask_choice(engine, check, decode, budget):
    """Have blocks chosen, and look whether they may be; returns them."""
    choose = engine.get("labs:choose_blocks")
    inputs = [x.clone() for x in decode[:4]]
    chosen = choose(*inputs, decode.scale, budget)
    num_blocks = len(decode.mean)
    if not check.true("a list came back", isinstance(chosen, list), "A list is asked for."):
        return []
    wrong = [x for x in chosen if type(x) is not int or not 0 <= x < num_blocks]
    says = "A block is named by an int from 0 on; .tolist() makes ints of a tensor."
    if budget > num_blocks and all(type(x) is int for x in wrong):
        says = MORE_THAN_ALL
    check.equal(f"entries that are no number of a block, of {num_blocks} blocks", wrong[:5], [], says)
    check.equal("blocks that are named twice", sorted({x for x in chosen if chosen.count(x) > 1})[:5], [])
    check.true(f"at most {budget} blocks", len(chosen) <= budget, "These are more than may be read.")
    same = all(torch.equal(one, other) for one, other in zip(inputs, decode[:4], strict=True))
    check.true("the tensors are as they were", same, "They are only read, and one of them has changed.")
    return [] if wrong else chosen


@case("ch10.choose_blocks")
def any_input(engine: Engine, check: Check) -> None:
    """Random heads, in pools from one block to many, with budgets from 1 to more than there are blocks."""
    rng = random.Random(0)
    for n in range(40):
        group, head_dim, num_tokens = rng.randint(1, 4), rng.choice([2, 8, 64]), rng.randint(1, 90)
        query, keys = numbers(group, head_dim, seed=n), numbers(num_tokens, head_dim, seed=n + 100)
        decode = attention_work.decode_of(query, keys, head_dim**-0.5)
        budget = rng.choice([1, 2, max(1, len(decode.mean) // 4), len(decode.mean), len(decode.mean) + 3])
        says = {"RuntimeError": MORE_THAN_ALL, "IndexError": MORE_THAN_ALL, "ValueError": MORE_THAN_ALL}
        check.step(
            f"{len(decode.mean)} blocks, a budget of {budget}, {group} query heads of {head_dim}",
            says if budget > len(decode.mean) else None,
        )
        ask_choice(engine, check, decode, budget)


@case("ch10.choose_blocks")
def the_talk(engine: Engine, check: Check) -> None:
    """Real queries and keys of the bundled model, in the recorded talk of chapter 07."""
    share_lost(engine, check, "talk", 0.105, "at most 10.5 %")


@case("ch10.choose_blocks")
def another_text(engine: Engine, check: Check) -> None:
    """Another text: the answers alone, one after the other."""
    share_lost(engine, check, "answers", attention_work.lost(attention_work.newest, "answers"), "less than the newest")


def share_lost(engine, check, name, limit, words):
    found = []
    for decode in attention_work.decodes(name):
        chosen = ask_choice(engine, check, decode, decode.budget)
        if check.first:
            return
        found.append(1.0 - float(decode.shares[chosen].sum()))
    share = sum(found) / len(found)
    newest = attention_work.lost(attention_work.newest, name)
    check.measured(f"{100 * share:.1f} % of attention is lost in {name!r}; the newest blocks lose {100 * newest:.1f} %")
    check.true(f"attention lost in {name!r} is {words}", share <= limit if name == "talk" else share < limit,
               f"{100 * share:.1f} % is lost, and {100 * limit:.1f} % is the limit.")  # fmt: skip
