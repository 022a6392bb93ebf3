"""Grader of chapter 15. What is right is computed in double precision from the same weights, head after head."""

import random
from functools import partial
from types import SimpleNamespace

import torch

from exercises.kit import model_work
from exercises.kit.grading import case
from exercises.kit.parallel_work import SimulatedGroup, together
from exercises.kit.probes import check_tensor

BASE = 100.0


def config_of(hidden=10, heads=4, kv_heads=2, head_dim=6, middle=7, layers=3, vocab=23):
    """A small model's sizes."""
    return SimpleNamespace(
        hidden_size=hidden, num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim,
        intermediate_size=middle, num_hidden_layers=layers, vocab_size=vocab, rms_norm_eps=1e-5, rope_theta=BASE,
        max_position_embeddings=64, attention_bias=False, hidden_act="silu", tie_word_embeddings=False,
    )  # fmt: skip


def fill(module, seed, dtype=torch.float32):
    """Random weights; those of norms are around 1, and all different."""
    generator = torch.Generator().manual_seed(seed)
    for name, param in sorted(module.named_parameters()):
        numbers = torch.randn(param.shape, generator=generator)
        is_norm = param.dim() == 1
        param.data = (1 + 0.5 * numbers.clamp(-1.6, 1.6) if is_norm else numbers * param.shape[-1] ** -0.5).to(dtype)
        if "embed" in name:
            param.data *= 3
    return module


def random_numbers(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


# What is right, and what comes of known mistakes.


def rms(x, weight, eps=1e-5):
    """Each row divided by its root mean square, then weighted."""
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def rotated(x, positions):
    """[tokens, heads, features], each pair of features turned by its token's angles."""
    half = x.shape[-1] // 2
    angles = positions.double()[:, None] * BASE ** (-torch.arange(half, dtype=torch.float64) / half)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def looked(q, k, v, lengths, group=None, causal=True, scale=None):
    """Attention, one sequence and one head after the other."""
    heads, kv_heads = q.shape[1], k.shape[1]
    group = group or (lambda h: h // (heads // kv_heads))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    result, start = torch.empty_like(q), 0
    for length in lengths:
        rows = slice(start, start + length)
        for h in range(heads):
            scores = scale * q[rows, h] @ k[rows, group(h)].T
            if causal:
                scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf)
            result[rows, h] = scores.softmax(-1) @ v[rows, group(h)]
        start += length
    return result


def attended(
    w, positions, qkv, lengths, order="qkv", by=None, when="before", turn="qk", look=True, heads=None, flat=None, **how
):
    """What attend returns for double-precision weights.

    Args:
        order: how the heads are cut.
        by: the norm of "q", "k" and "v": a letter of q, k, or "" for none.
        when: "before" the rotation, "after" it, or "twice".
        turn: what is rotated.
        look: False leaves attention itself out.
        heads: how a row becomes heads; flat: how heads become a row.
        how: for `looked`.
    """
    by = {"q": "q", "k": "k", "v": ""} | (by or {})
    norms = {"q": w.q_norm, "k": w.k_norm, "": None}
    rows = (heads or (lambda x: x.reshape(len(x), -1, w.head_dim)))(qkv.double())
    parts = dict(zip(order, rows.split([{"q": w.heads}.get(x, w.kv_heads) for x in order], 1), strict=True))
    for name in "qkv":
        x, weight = parts[name], norms[by[name]]
        for stage in {"before": "nr", "after": "rn", "twice": "nnr", "again": "nrr", "both": "nrn"}[when]:
            if stage == "n" and weight is not None:
                x = rms(x, weight)
            elif stage == "r" and name in turn:
                x = rotated(x, positions)
        parts[name] = x
    q, k, v = (parts[name] for name in "qkv")
    found = looked(q, k, v, lengths, **how) if look else q
    return (flat or (lambda x: x.reshape(len(x), -1)))(found)


def weights_of(attention):
    """The numbers of an attention layer, in double precision."""
    return SimpleNamespace(
        q_norm=attention.q_norm.weight.double(), k_norm=attention.k_norm.weight.double(),
        qkv=attention.qkv_proj.weight.double(), o=attention.o_proj.weight.double(), head_dim=attention.head_dim,
        heads=attention.num_heads, kv_heads=attention.num_kv_heads,
    )  # fmt: skip


def whole_norm(w):
    """A norm over all heads of a token together."""

    def attend(positions, qkv, lengths):
        rows, ends = qkv.double(), (w.heads * w.head_dim, (w.heads + w.kv_heads) * w.head_dim)
        q = rms(rows[:, : ends[0]], w.q_norm.repeat(w.heads))
        k = rms(rows[:, ends[0] : ends[1]], w.k_norm.repeat(w.kv_heads))
        mixed = torch.cat((q, k, rows[:, ends[1] :]), 1)
        return attended(w, positions, mixed, lengths, by={"q": "", "k": ""})

    return attend  # fmt: skip


def unlike(expected, found):
    """The mistakes that give something else here, each kind of result once."""
    kept = {}
    for text, wrong in found.items():
        if not any(wrong.shape == seen.shape and torch.allclose(wrong, seen) for seen in (expected, *kept.values())):
            kept[text] = wrong
    return kept


def if_wrong(check, got, expected, tolerance, make):
    """The known mistakes, but only where one has to be named: right answers are checked quickly."""
    is_alike = isinstance(got, torch.Tensor) and got.shape == expected.shape
    allowed = tolerance * max(float(expected.abs().max()), 1e-6) / 2
    is_right = is_alike and bool(((got.double() - expected).abs() <= allowed).all())
    return {} if is_right or check.first else make()


def attend_mistakes(w, positions, qkv, lengths):
    """What each known mistake gives for these inputs."""

    def get(**how):
        return attended(w, positions, qkv, lengths, **how)

    def interleaved(x):
        return x.reshape(len(x), w.head_dim, -1).transpose(1, 2)

    counted, zeros = torch.arange(len(qkv)), torch.zeros(len(qkv))
    q, k, v = heads_by(w, positions, qkv, q="nr", k="nr")
    found = {
        "attn got the values as keys, and the keys as values: it takes queries, keys, values.":
            looked(q, v, k, lengths).flatten(1),
        "attn got the keys as values, too.": looked(q, k, k, lengths).flatten(1),
        "attn got the values as keys, too.": looked(q, v, v, lengths).flatten(1),
        "Keys and values have changed places: behind the queries come the keys, and then the values.":
            get(order="qvk"),
        "The keys are not normalized: what k_norm returns has to be used.": get(by={"k": ""}),
        "The queries are not normalized: what q_norm returns has to be used.": get(by={"q": ""}),
        "Neither queries nor keys were normalized: what the norms return has to be used.": get(by={"q": "", "k": ""}),
        "Both were normalized with q_norm; keys have a norm of their own.": get(by={"k": "q"}),
        "Both were normalized with k_norm; queries have a norm of their own.": get(by={"q": "k"}),
        "q_norm and k_norm have changed places.": get(by={"q": "k", "k": "q"}),
        "The norms come after the rotation; their weights belong to the features before it.": get(when="after"),
        "Only the queries were normalized before the rotation, and the keys after it.":
            looked(*heads_by(w, positions, qkv, q="nr", k="rn"), lengths).flatten(1),
        "Only the keys were normalized before the rotation, and the queries after it.":
            looked(*heads_by(w, positions, qkv, q="rn", k="nr"), lengths).flatten(1),
        "Queries and keys were normalized twice, so that the weights count twice.": get(when="twice"),
        "Queries and keys were normalized before the rotation and once more after it.": get(when="both"),
        "The values were normalized, too, with k_norm; only queries and keys are.": get(by={"v": "k"}),
        "The values were normalized, too, with q_norm; only queries and keys are.": get(by={"v": "q"}),
        "All heads were normalized with q_norm before they were cut; keys have k_norm, and values none.":
            get(by={"k": "q", "v": "q"}),
        "Each norm went over all heads of a token together; each head is normalized by itself.":
            whole_norm(w)(positions, qkv, lengths),
        "Nothing was rotated: what rotary_emb returns has to be used.": get(turn=""),
        "The keys were not rotated.": get(turn="q"),
        "The queries were not rotated.": get(turn="k"),
        "The values were rotated, too; only queries and keys are.": get(turn="qkv"),
        "Queries and keys were rotated twice.": get(when="again"),
        "Nothing was normalized, and nothing was rotated.": get(by={"q": "", "k": ""}, turn=""),
        "The positions were counted through the step, 0, 1, 2, ...; they are given.":
            attended(w, counted, qkv, lengths),
        "All tokens were rotated to the same position; each has its own.": attended(w, zeros, qkv, lengths),
        "The positions are one too high.": attended(w, counted + 1, qkv, lengths),
        "A row was cut into features first: its numbers are head after head, head_dim of each.": get(heads=interleaved),
        "The heads came out in the wrong order: the tokens and the heads were exchanged before the row was made.":
            get(flat=lambda x: x.transpose(0, 1).reshape(len(x), -1)),
        "In a row of the result the features of all heads alternate; a head's features belong together.":
            get(flat=lambda x: x.transpose(1, 2).reshape(len(x), -1)),
        "The numbers of all tokens were cut as if the heads came first, and then the tokens.":
            get(heads=lambda x: x.reshape(-1, len(x), w.head_dim).transpose(0, 1)),
        "There is no attention in it: these are the queries.": get(look=False),
        "There is no attention in it: these are the normalized queries, not rotated.": get(look=False, turn=""),
        "Query heads look at the wrong KV heads: neighbors share one, head h has h // (num_heads // num_kv_heads).":
            get(group=lambda h: h % w.kv_heads),
        "All query heads look at the first KV head.": get(group=lambda h: 0),
        "Tokens see those after them: self.attn was not used, or its work was done without a mask.": get(causal=False),
        "The scores were scaled twice: attn does it.": get(scale=1 / w.head_dim),
        "The scores were not scaled.": get(scale=1.0),
        "The tokens of different sequences look at each other: self.attn knows which belong together.":
            attended(w, positions, qkv, [len(qkv)]),
        "Tokens of all sequences look at all others: self.attn knows which belong together, and who comes before.":
            attended(w, positions, qkv, [len(qkv)], causal=False),
        "Each token looks at itself only: these are its own values.":
            attended(w, positions, qkv, [1] * len(qkv)),
    }  # fmt: skip
    for order, text in (
        ("kqv", "The keys were taken first, then the queries."), ("vqk", "The values were taken first."),
        ("kvq", "The keys were taken first, then the values."),
        ("vkq", "The values were taken first, and the queries last."),
    ):  # fmt: skip
        found[f"{text} In a row the queries come first, then the keys, then the values."] = get(order=order)
    bare = SimpleNamespace(**vars(w) | {"q_norm": torch.ones(w.head_dim), "k_norm": torch.ones(w.head_dim)})
    half_bare = SimpleNamespace(**vars(w) | {"k_norm": torch.ones(w.head_dim)})
    late = [looked(*parts, lengths).flatten(1) for parts in (
        (q, rotated(heads_by(w, positions, qkv, q="", k="n")[1], positions + 1), v),
        (rotated(q, positions), k, v), (q, rotated(k, positions), v), (q.flip(1), k, v),
    )]  # fmt: skip
    rows = qkv.double().reshape(len(qkv), w.kv_heads, -1, w.head_dim)
    by_group = torch.cat((rows[:, :, :-2].flatten(1, 2), rows[:, :, -2], rows[:, :, -1]), 1).flatten(1)
    out = get().reshape(len(qkv), -1, w.head_dim)
    found |= {
        "All heads were normalized with k_norm before they were cut; queries have q_norm, and values none.":
            get(by={"q": "k", "v": "k"}),
        "The norms are without their weights: q_norm and k_norm have them.": attended(bare, positions, qkv, lengths),
        "The norm of the keys is without its weight: k_norm has it.": attended(half_bare, positions, qkv, lengths),
        "The positions were taken in the opposite order.": attended(w, positions.flip(0), qkv, lengths),
        "The keys were rotated by one position too many.": late[0],
        "The queries were rotated twice.": late[1],
        "The keys were rotated twice.": late[2],
        "The query heads are in the opposite order.": late[3],
        "A row was cut by groups, each with its queries, its key and its value; all queries come first.":
            attended(w, positions, by_group, lengths),
        "The queries were added to the result.": get() + qkv.double()[:, : w.heads * w.head_dim],
        "The outputs of attention were normalized with q_norm.": rms(out, w.q_norm).flatten(1),
        "A row was used as it is: no head was normalized, and nothing rotated.":
            get(by={"q": "", "k": ""}, turn="").reshape(len(qkv), -1),
    }  # fmt: skip
    found |= other_orders(w, positions, qkv, lengths, (q, k, v))
    dense = w.o
    if dense.shape[1] == w.heads * w.head_dim:
        found["The output went through o_proj already; forward does that."] = get() @ dense.T
    return {text: wrong.float() for text, wrong in unlike(get(), found).items()}


def other_orders(w, positions, qkv, lengths, parts):
    """Query heads or outputs that alternate: with one token, and where each head has its own keys, some are right."""
    q, k, v = parts
    size = w.heads // w.kv_heads
    by_remainder = [h for first in range(w.kv_heads) for h in range(first, w.heads, w.kv_heads)]
    by_place = [h for first in range(size) for h in range(first, w.heads, size)]
    out = attended(w, positions, qkv, lengths).reshape(len(qkv), -1, w.head_dim)
    found = {}
    for order in (by_remainder, by_place):
        found |= {
            f"The query heads came to attn interleaved, as {order}: they stay in the order of the row, 0, 1, 2, "
            "..., for neighbors share a KV head.": looked(q[:, order], k, v, lengths).flatten(1),
            f"The heads of the result are interleaved, as {order}: they stay in the order of the row, 0, 1, 2, ....":
                out[:, order].flatten(1),
            f"Query heads look at the wrong KV heads: they were grouped as {order}, but neighbors share one.":
                looked(q, k, v, lengths, group=lambda h, order=order: order.index(h) // size).flatten(1),
        }  # fmt: skip
    rows = qkv.double().reshape(len(qkv), -1, w.head_dim)
    ends = {"q": slice(0, w.heads), "k": slice(w.heads, -w.kv_heads), "v": slice(-w.kv_heads, None)}
    for name, word in {"q": "queries", "k": "keys", "v": "values"}.items():
        mixed, own = rows.clone(), rows[:, ends[name]]
        mixed[:, ends[name]] = own.flatten(1).reshape(len(own), w.head_dim, -1).transpose(1, 2)
        found[f"The {word} were cut into features first: their numbers are head after head, head_dim of each."] = (
            attended(w, positions, mixed.flatten(1), lengths)
        )
    return found


def heads_by(w, positions, qkv, q, k):
    """Queries, keys and values, with norm and rotation in an order of each."""
    rows = qkv.double().reshape(len(qkv), -1, w.head_dim)
    parts = rows.split([w.heads, w.kv_heads, w.kv_heads], 1)
    found = []
    for x, stages, weight in zip(parts, (q, k, ""), (w.q_norm, w.k_norm, None), strict=True):
        for stage in stages:
            x = rms(x, weight) if stage == "n" else rotated(x, positions)
        found.append(x)
    return found


RAISED = {
    "RuntimeError": "Shapes do not fit: a row of qkv has num_heads + 2 * num_kv_heads heads of head_dim features, and "
    "the norms, the rotation and attn take [num_tokens, heads, head_dim].",
    "ValueError": "Something was unpacked into another number of parts than it has. rotary_emb returns two tensors, "
    "and split with a list of three sizes gives three.",
    "IndexError": "A dimension was asked for that is not there: qkv has two, tokens and features.",
    "AttributeError": "Something was asked of an object that does not have it. The layer has q_norm, k_norm, "
    "rotary_emb, attn, num_heads, num_kv_heads and head_dim.",
    "TypeError": "Something was called with other arguments than it takes: rotary_emb(positions, q, k), attn(q, k, v).",
    "NameError": "A name is used that does not exist here; what belongs to the layer begins with self.",
    "UnboundLocalError": "A variable is used before it has a value.",
    "AssertionError": "An assert failed, though the input is as it should be.",
}
SAME = "It was changed: it was written into it. It has to stay as it is."


class Step:
    """The context of a step, for as long as it runs."""

    def __init__(self, engine, lengths, **fields):
        self.module = engine.package.module("utils.context")
        ends = torch.tensor([0, *lengths]).cumsum(0).int()
        self.fields = {"is_prefill": True, "cu_seqlens_q": ends, "cu_seqlens_k": ends} | fields

    def __enter__(self):
        self.module.set_context(**self.fields)

    def __exit__(self, *error):
        self.module.reset_context()


def attention_of(engine, config, seed=0, dtype=torch.float32):
    rotary = engine.get("layers.rotary_embedding:RotaryEmbedding")(config.head_dim, 64, BASE)
    return fill(engine.get("models.qwen3:Qwen3Attention")(config, rotary), seed, dtype)


def ask_attend(
    engine, check, lengths=(5,), positions=None, seed=0, dtype=torch.float32, times=1.0, layer=None, **sizes
):
    """Have a layer attend, and compare."""
    layer = layer or attention_of(engine, config_of(**sizes), seed, dtype)
    w, count = weights_of(layer), sum(lengths)
    positions = torch.tensor(positions or [p for length in lengths for p in range(length)])
    width = (w.heads + 2 * w.kv_heads) * w.head_dim
    qkv = (times * random_numbers(count, width, seed=seed + 1)).to(dtype)
    before, places = qkv.clone(), positions.clone()
    texts = "one sequence of" if len(lengths) == 1 else f"{len(lengths)} sequences of"
    check.step(f"{texts} {', '.join(map(str, lengths))} tokens, positions {positions.tolist()}: {w.heads} query heads, "
               f"{w.kv_heads} KV heads of {w.head_dim} features", RAISED)  # fmt: skip
    with Step(engine, lengths), torch.no_grad():
        got = layer.attend(positions, qkv)
    expected = attended(w, positions, before, lengths)
    tolerance = 1e-4 if dtype == torch.float32 else 3e-2
    mistakes = if_wrong(check, got, expected, tolerance, lambda: attend_mistakes(w, positions, before, lengths))
    check_tensor(check, "what comes back", got, expected, ("token", "feature"), mistakes, {"qkv": before}, dtype,
                 tolerance)  # fmt: skip
    check.true("qkv is as it was", torch.equal(qkv, before), SAME)
    check.true("positions are as they were", torch.equal(positions, places), SAME)
    return got


@case("ch15.attend")
def one_sequence(engine, check):
    """Five tokens of one sequence, with gaps between their positions; four query heads, and two KV heads for them."""
    ask_attend(engine, check, positions=[3, 4, 6, 7, 11])


@case("ch15.attend")
def two_sequences(engine, check):
    """Two sequences in one step: three tokens of the one, and two of the other. Neither sees the other."""
    ask_attend(engine, check, (3, 2), [0, 1, 2, 0, 1], seed=1)
    ask_attend(engine, check, (2, 1, 3), [4, 5, 9, 0, 1, 2], seed=2, heads=6, kv_heads=3, head_dim=4)


@case("ch15.attend")
def every_head_its_own(engine, check):
    """As many KV heads as query heads, as in older models."""
    ask_attend(engine, check, (4,), [2, 3, 4, 5], seed=3, heads=3, kv_heads=3, head_dim=4)


@case("ch15.attend")
def one_for_all(engine, check):
    """Six query heads share a single KV head; their features together are more than the hidden size."""
    ask_attend(engine, check, (3,), seed=4, heads=6, kv_heads=1, head_dim=8, hidden=12)


@case("ch15.attend")
def sizes_that_coincide(engine, check):
    """As many tokens as query heads and as features of a head; what comes back is as wide as the hidden size."""
    ask_attend(engine, check, (4,), [1, 2, 3, 4], seed=5, heads=4, kv_heads=2, head_dim=4, hidden=16)


@case("ch15.attend")
def one_token(engine, check):
    """A single token, which can only look at itself."""
    ask_attend(engine, check, (1,), [7], seed=6)


@case("ch15.attend")
def large_and_small_numbers(engine, check):
    """Queries, keys and values a thousand times as large, and a hundredth; the norms make queries and keys alike."""
    ask_attend(engine, check, (3,), seed=7, times=1000.0)
    ask_attend(engine, check, (3,), seed=7, times=0.01)


@case("ch15.attend")
def half_precision(engine, check):
    """A model in bfloat16: the result is bfloat16, too."""
    ask_attend(engine, check, (4,), [5, 6, 7, 8], seed=8, dtype=torch.bfloat16, head_dim=8)


@case("ch15.attend")
def one_rank_of_two(engine, check):
    """A layer of which this rank has half of the heads: two query heads of four, one KV head of two."""
    with engine.package.module("utils.parallel_state").tensor_parallel_group(SimulatedGroup(1, 2)):
        layer = on_rank(
            attention_of(engine, config_of(), 9), engine.get("utils.parallel_state:TensorParallelGroup")(0, 1)
        )
    ask_attend(engine, check, (3,), seed=9, layer=layer)


@case("ch15.attend")
def with_a_cache(engine, check):
    """Two sequences are read into a paged cache; then each goes on by one token, which looks at all before it."""
    layer, lengths = attention_of(engine, config_of(), 10), [3, 5]
    w = weights_of(layer)
    layer.attn.k_cache, layer.attn.v_cache = (torch.zeros(6, 2, w.kv_heads, w.head_dim) for _ in range(2))
    tables = [[4, 1], [0, 3, 5]]
    rows = [random_numbers(n + 1, (w.heads + 2 * w.kv_heads) * w.head_dim, seed=20 + n) for n in lengths]
    slots = [[table[i // 2] * 2 + i % 2 for i in range(n + 1)] for n, table in zip(lengths, tables, strict=True)]
    says = "Shapes do not fit: attn writes keys and values into its cache, which has num_kv_heads heads a token."
    check.step("a prefill step: 3 and 5 tokens", RAISED | {"RuntimeError": says})
    first = torch.tensor([slot for own, n in zip(slots, lengths, strict=True) for slot in own[:n]])
    positions = torch.tensor([p for n in lengths for p in range(n)])
    with Step(engine, lengths, slot_mapping=first), torch.no_grad():
        layer.attend(positions, torch.cat([own[:n] for own, n in zip(rows, lengths, strict=True)]))
    check.step("a decode step: one token each, at positions 3 and 5", RAISED)
    fields = {
        "is_prefill": False, "cu_seqlens_q": None, "cu_seqlens_k": None,
        "slot_mapping": torch.tensor([own[-1] for own in slots]), "context_lens": torch.tensor([4, 6]).int(),
        "block_tables": torch.tensor([[4, 1, -1], [0, 3, 5]]).int(),
    }  # fmt: skip
    now = torch.stack([own[-1] for own in rows])
    with Step(engine, lengths, **fields), torch.no_grad():
        got = layer.attend(torch.tensor(lengths), now)
    texts = [(torch.arange(n + 1), own, [n + 1]) for n, own in zip(lengths, rows, strict=True)]
    expected = torch.stack([attended(w, *text)[-1] for text in texts])

    def last_rows():
        one, other = (attend_mistakes(w, *text) for text in texts)
        alike = [text for text in one if text in other and one[text].shape == (4, expected.shape[1])]
        found = {text: torch.stack((one[text][-1], other[text][-1])) for text in alike}
        for text, news in (
            ("The positions were counted from the first one of the step; what is in the cache has its own.", (0, 2)),
            ("The positions were counted through the step, 0, 1, 2, ...; they are given.", (0, 1)),
        ):
            moved = [
                attended(w, torch.tensor([*range(n), new]), own, [n + 1])[-1]
                for n, own, new in zip(lengths, rows, news, strict=True)
            ]
            found[text] = torch.stack(moved).float()
        return found

    named = if_wrong(check, got, expected, 1e-4, last_rows)
    text = "The cache was not used: each token looks at itself only. self.attn stores keys and values, and reads them."
    alone = torch.cat([
        attended(w, torch.tensor([n]), own[-1:], [1]) for n, own in zip(lengths, rows, strict=True)
    ])  # fmt: skip
    axes = ("sequence", "feature")
    check_tensor(check, "what comes back", got, expected, axes, {text: alone.float(), **named}, dtype=torch.float32)


# mlp


def gated(w, x, gate=None, join=None, swap=False):
    """What the MLP gives for double-precision weights."""
    first, second = (x.double() @ w.gate_up.T).chunk(2, -1)
    if swap:
        first, second = second, first
    gate = gate or torch.nn.functional.silu
    inside = (join or (lambda a, b: gate(a) * b))(first, second)
    return inside @ w.down.T


def mlp_mistakes(w, x):
    """What each known mistake gives."""
    silu, x = torch.nn.functional.silu, x.double()
    middle = x @ w.gate_up.T
    mixed = torch.stack(middle.chunk(2, -1), -1).flatten(-2)
    even, odd = middle[..., ::2], middle[..., 1::2]
    found = {
        "The two halves have changed places: the first is the gate, which goes through SiLU.": gated(w, x, swap=True),
        "The activation is missing: gate and values were only multiplied.": gated(w, x, lambda a: a),
        "The gate went through a sigmoid; SiLU is x times its sigmoid.": gated(w, x, torch.sigmoid),
        "The gate went through GELU.": gated(w, x, torch.nn.functional.gelu),
        "The gate went through GELU, as it is approximated by tanh.":
            gated(w, x, lambda a: torch.nn.functional.gelu(a, approximate="tanh")),
        "The gate went through ReLU.": gated(w, x, torch.relu),
        "The gate went through tanh.": gated(w, x, torch.tanh),
        "The gate went through a softmax.": gated(w, x, lambda a: a.softmax(-1)),
        "Gate and values were added; the one multiplies the other.": gated(w, x, join=lambda a, b: silu(a) + b),
        "SiLU came after the product of both halves; it is for the gate alone.":
            gated(w, x, join=lambda a, b: silu(a * b)),
        "Both halves went through SiLU; it is for the gate alone.":
            gated(w, x, join=lambda a, b: silu(a) * silu(b)),
        "The gate went through SiLU twice.": gated(w, x, lambda a: silu(silu(a))),
        "Everything went through SiLU before act_fn, which does that for the gate.":
            gated(w, x, join=lambda a, b: silu(silu(a)) * silu(b)),
        "Both halves went through a sigmoid.": gated(w, x, join=lambda a, b: a.sigmoid() * b.sigmoid()),
        "The gate went through softplus.": gated(w, x, torch.nn.functional.softplus),
        "The gate went through Mish.": gated(w, x, torch.nn.functional.mish),
        "The gate went through a squared ReLU.": gated(w, x, lambda a: a.relu() ** 2),
        "The gate was multiplied by itself, through SiLU; it opens and closes the other half.":
            gated(w, x, join=lambda a, b: silu(a) * a),
        "Only the gate's half was used.": gated(w, x, join=lambda a, b: silu(a)),
        "Only the second half was used, and nothing gates it.": gated(w, x, join=lambda a, b: b),
        "Only the second half was used, through SiLU.": gated(w, x, join=lambda a, b: silu(b)),
        "Only the gate's half was used, without an activation.": gated(w, x, join=lambda a, b: a),
        "Both halves were added, without an activation.": gated(w, x, join=lambda a, b: a + b),
        "The input was added to the result; that is the decoder layer's work.": x + gated(w, x),
        "The result was multiplied by the input.": x * gated(w, x),
        "The input was normalized again; it comes normalized.":
            gated(w, x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()),
        "The input went through SiLU before it was projected.": gated(w, silu(x)),
        "The result went through SiLU once more.": silu(gated(w, x)),
        "Features that are neighbors were taken for gate and value; the gate is the first half.":
            (silu(even) * odd) @ w.down.T,
        "down_proj is missing: these are the features in between.":
            silu(middle.chunk(2, -1)[0]) * middle.chunk(2, -1)[1],
        "down_proj and the activation are missing: this is what gate_up_proj gives.": middle,
        "down_proj and the activation are missing, and the halves alternate.": mixed,
        "The MLP was applied twice.": gated(w, gated(w, x)),
    }  # fmt: skip
    return {text: wrong.float() for text, wrong in unlike(gated(w, x), found).items()}


MLP_RAISED = {
    "RuntimeError": "Shapes do not fit: gate_up_proj takes [num_tokens, hidden_size] and gives twice intermediate_size "
    "features, act_fn makes intermediate_size of them, which is what down_proj takes.",
    "AttributeError": "Something was asked of an object that does not have it. The layer has gate_up_proj, act_fn and "
    "down_proj.",
    "TypeError": "Something was called with other arguments than it takes: each of the three takes one tensor.",
    "NameError": "A name is used that does not exist here; what belongs to the layer begins with self.",
    "ValueError": "Something was unpacked into another number of parts than it has.",
    "NobodyThere": "The ranks meet in other collectives than they should: down_proj does what has to be done.",
    "AssertionError": "An assert failed, though the input is as it should be.",
}


def mlp_weights(mlp):
    return SimpleNamespace(gate_up=mlp.gate_up_proj.weight.double(), down=mlp.down_proj.weight.double())


def ask_mlp(engine, check, x, seed=0, **sizes):
    """Have an MLP compute, and compare."""
    mlp = fill(engine.get("models.qwen3:Qwen3MLP")(config_of(hidden=x.shape[1], **sizes)), seed, x.dtype)
    w, before = mlp_weights(mlp), x.clone()
    check.step(f"x {list(x.shape)}, {w.down.shape[1]} features in between", MLP_RAISED)
    with torch.no_grad():
        got = mlp(x)
    expected = gated(w, before)
    tolerance = 1e-4 if x.dtype == torch.float32 else 3e-2
    mistakes = if_wrong(check, got, expected, tolerance, lambda: mlp_mistakes(w, before))
    check_tensor(check, "what comes back", got, expected, ("token", "feature"), mistakes, {"x": before}, x.dtype,
                 tolerance)  # fmt: skip
    check.true("x is as it was", torch.equal(x, before), SAME)


@case("ch15.mlp")
def three_tokens(engine, check):
    """Three tokens of five features; seven features in between."""
    ask_mlp(engine, check, random_numbers(3, 5), middle=7)


@case("ch15.mlp")
def fewer_in_between(engine, check):
    """Fewer features in between than outside; and as many, with as many tokens."""
    ask_mlp(engine, check, random_numbers(2, 8, seed=1), seed=1, middle=4)
    ask_mlp(engine, check, random_numbers(6, 6, seed=2), seed=2, middle=6)


@case("ch15.mlp")
def one_row(engine, check):
    """A single token; and a token of zeros, for which everything is 0."""
    ask_mlp(engine, check, random_numbers(1, 4, seed=3), seed=3, middle=10)
    ask_mlp(engine, check, torch.zeros(1, 4), seed=3, middle=10)


@case("ch15.mlp")
def large_numbers(engine, check):
    """Numbers so large that the gate is wide open or shut."""
    ask_mlp(engine, check, 60 * random_numbers(4, 6, seed=4), seed=4, middle=9)


@case("ch15.mlp")
def mlp_in_half_precision(engine, check):
    """A model in bfloat16: the result is bfloat16, too."""
    ask_mlp(engine, check, random_numbers(3, 8, seed=5, dtype=torch.bfloat16), seed=5, middle=12)


@case("ch15.mlp")
def mlp_of_two_ranks(engine, check):
    """Two ranks, each with half of the features in between; on both, the whole result comes back."""
    config, x = config_of(hidden=6, middle=8), random_numbers(3, 6, seed=6)
    full, parts = random_numbers(16, 6, seed=7), []
    down = random_numbers(6, 8, seed=8)
    for rank in range(2):
        with engine.package.module("utils.parallel_state").tensor_parallel_group(SimulatedGroup(rank, 2)):
            parts.append(engine.get("models.qwen3:Qwen3MLP")(config))
        gate, up = full.chunk(2)
        own = slice(4 * rank, 4 * rank + 4)
        parts[rank].gate_up_proj.weight.data.copy_(torch.cat((gate[own], up[own])))
        parts[rank].down_proj.weight.data.copy_(down[:, own])
    check.step("two ranks compute", MLP_RAISED)
    with torch.no_grad():
        found = together(2, lambda group: on_rank(parts[group.rank], group)(x.clone()), most=4).results
    whole = SimpleNamespace(gate_up=full.double(), down=down.double())
    expected, mistakes = gated(whole, x), mlp_mistakes(whole, x)
    for rank in range(2):
        part = gated(mlp_weights(parts[rank]), x).float()
        text = "This is this rank's part alone: down_proj adds up the parts of all ranks, its weight alone does not."
        check_tensor(check, f"what rank {rank} returns", found[rank], expected, ("token", "feature"),
                     {text: part} | mistakes, dtype=torch.float32)  # fmt: skip


def on_rank(module, group):
    """A module whose collectives go to this group."""
    for part in module.modules():
        if hasattr(part, "group"):
            part.group = group
    return module


# decoder_layer


def parts_of(layer, positions, lengths):
    """The functions of a layer, in double precision: two norms, attention and the MLP."""
    w, mlp = weights_of(layer.self_attn), mlp_weights(layer.mlp)
    weights = [norm.weight.double() for norm in (layer.input_layernorm, layer.post_attention_layernorm)]

    def attention(x, at=positions):
        return attended(w, at, x @ w.qkv.T, lengths) @ w.o.T

    return SimpleNamespace(
        first=lambda x: rms(x, weights[0]), second=lambda x: rms(x, weights[1]), attention=attention,
        mlp=lambda x: gated(mlp, x),
    )  # fmt: skip


def after_layer(p, x):
    """The stream after a layer."""
    x = x + p.attention(p.first(x))
    return x + p.mlp(p.second(x))


def layer_mistakes(p, x, positions):
    """What each known mistake gives."""
    a, m, n1, n2 = p.attention, p.mlp, p.first, p.second
    between = x + a(n1(x))
    alone = a(n1(x))
    counted, zeros = torch.arange(len(x)), torch.zeros(len(x))
    normed = n1(x)
    read = normed + a(normed)
    back = x + a(x)
    found = {
        "The stream is missing in both sums: only what attention and then the MLP made came on.": m(n2(alone)),
        "The MLP's result was not added to the stream: it alone came back.": m(n2(between)),
        "Attention's result was not added to the stream: what came before this layer is lost in the middle.":
            alone + m(n2(alone)),
        "Nothing of attention is in it: it was left out, or what it found is neither added nor read by the MLP.":
            x + m(n2(x)),
        "The MLP reads the stream as it was before attention: it comes after it.": between + m(n2(x)),
        "The MLP's result was added to the stream from before attention, so attention's is lost.":
            x + m(n2(between)),
        "The MLP reads only what attention has found, not the stream with it.": between + m(n2(alone)),
        "The MLP reads only what attention has found, and attention's result is not in the sum.":
            x + m(n2(alone)),
        "The stream was added once more at the end.": x + between + m(n2(between)),
        "The stream was added twice in attention's sum.": x + between + m(n2(x + between)),
        "The stream after attention was added twice.": 2 * between + m(n2(between)),
        "Attention reads the stream as it is; it reads a copy that input_layernorm has made.":
            back + m(n2(back)),
        "The MLP reads the stream as it is; it reads a copy that post_attention_layernorm has made.":
            between + m(between),
        "There is no norm at all: both read the stream as it is.": back + m(back),
        "The norms come after the sums, as in the first transformers (post-norm): the stream itself is normalized.":
            n2(n1(back) + m(n1(back))),
        "The norms were applied to what attention and the MLP return, and to nothing that they read.":
            (x + n1(a(x))) + n2(m(x + n1(a(x)))),
        "The two norms have changed places.": (x + a(n2(x))) + m(n1(x + a(n2(x)))),
        "input_layernorm was used for both.": between + m(n1(between)),
        "post_attention_layernorm was used for both.": (x + a(n2(x))) + m(n2(x + a(n2(x)))),
        "The normalized copy took the stream's place before attention: the sum has to be with the stream itself.":
            read + m(n2(read)),
        "The normalized copy took the stream's place before the MLP: the sum has to be with the stream itself.":
            n2(between) + m(n2(between)),
        "Both times the normalized copy took the stream's place.": n2(read) + m(n2(read)),
        "The MLP came first, and then attention.": after_exchanged(p, x),
        "The MLP came first, and then attention, each with the other's norm.":
            (x + m(n1(x))) + a(n2(x + m(n1(x)))),
        "Nothing of the MLP is in it: it was left out, or what it returns was not added.": between,
        "Only what attention and the MLP have to add came back, without the stream.":
            alone + m(n2(between)),
        "Attention's result was taken away from the stream.": (x - alone) + m(n2(x - alone)),
        "The result was normalized at the end.": n2(between + m(n2(between))),
        "The result was normalized at the end, with input_layernorm.": n1(between + m(n2(between))),
        "The normalized copy came back, as fused norms want it, and nothing of the MLP is in it.": n2(between),
        "The norms of both come first: the MLP's input was normalized twice.": between + m(n2(n1(between))),
        "The positions were counted through the step, 0, 1, 2, ...; they are given.": after_at(p, x, counted),
        "All tokens were given the same position.": after_at(p, x, zeros),
        "The sum was halved.": (between + m(n2(between))) / 2,
        "What attention returns was normalized before it was added, and the MLP reads the stream as it is.":
            added(x + n2(alone), m(x + n2(alone))),
        "What attention returns was normalized before it was added; norms make what is read.":
            added(x + n2(alone), m(n2(x + n2(alone)))),
        "The MLP reads the same normalized copy as attention; it has its own, of the stream after attention.":
            between + m(normed),
        "Attention was applied twice.": after_twice(p, x),
        "Attention's result was added twice.": between + alone + m(n2(between)),
        "The MLP's result was added twice.": between + 2 * m(n2(between)),
        "The stream was multiplied by attention's result; it is added.": added(x * alone, m(n2(x * alone))),
        "The results were taken away from the stream; they are added.": (x - alone) - m(n2(x - alone)),
        "The norms come after the sums, and have changed places.": n1(n2(back) + m(n2(back))),
        "The stream was normalized at the end of the layer, in place of the copy that the MLP reads.":
            n2(between + m(between)),
        "input_layernorm was applied twice.": added(x + a(n1(normed)), m(n2(x + a(n1(normed))))),
        "The two results of a norm with a residual have changed places: first comes the normalized sum, then the sum.":
            n2(between) + m(between),
        "Attention gets the positions in the opposite order.": after_at(p, x, positions.flip(0)),
    }  # fmt: skip
    return {text: wrong.float() for text, wrong in unlike(after_layer(p, x), found).items()}


def added(x, y):
    return x + y


def after_twice(p, x):
    for _ in range(2):
        x = x + p.attention(p.first(x))
    return x + p.mlp(p.second(x))


def after_exchanged(p, x):
    x = x + p.mlp(p.second(x))
    return x + p.attention(p.first(x))


def after_at(p, x, positions):
    x = x + p.attention(p.first(x), positions)
    return x + p.mlp(p.second(x))


LAYER_RAISED = {
    "RuntimeError": "Shapes do not fit: norms, attention and MLP all take [num_tokens, hidden_size] and give the same. "
    "Attention takes the positions first.",
    "AttributeError": "Something was asked of an object that does not have it. The layer has input_layernorm, "
    "self_attn, post_attention_layernorm and mlp.",
    "TypeError": "Something was called with other arguments than it takes: self_attn(positions, x), and the others "
    "take x. A norm that is given a second tensor returns two.",
    "IndexError": "Something was used as an index that is none: attention takes the positions first.",
    "NameError": "A name is used that does not exist here; what belongs to the layer begins with self.",
    "ValueError": "Something was unpacked into another number of parts than it has.",
    "NobodyThere": "The ranks meet in other collectives than they should: every rank does the same.",
    "AssertionError": "An assert failed, though the input is as it should be.",
}


def rotary_of(engine, config):
    return engine.get("layers.rotary_embedding:RotaryEmbedding")(config.head_dim, 64, BASE)


def ask_layer(engine, check, lengths=(4,), positions=None, seed=0, dtype=torch.float32, times=1.0, **sizes):
    """Have a decoder layer compute, and compare."""
    config = config_of(**sizes)
    layer = fill(engine.get("models.qwen3:Qwen3DecoderLayer")(config, rotary_of(engine, config)), seed, dtype)
    positions = torch.tensor(positions or [p for length in lengths for p in range(length)])
    x = (times * random_numbers(sum(lengths), config.hidden_size, seed=seed + 1)).to(dtype)
    before, places = x.clone(), positions.clone()
    check.step(f"{len(lengths)} sequence{'s' * (len(lengths) > 1)}, positions {positions.tolist()}, hidden size "
               f"{config.hidden_size}", LAYER_RAISED)  # fmt: skip
    with Step(engine, lengths), torch.no_grad():
        got = layer(positions, x)
    parts, x_before = parts_of(layer, positions, lengths), before.double()
    expected, tolerance = after_layer(parts, x_before), 1e-4 if dtype == torch.float32 else 3e-2
    mistakes = if_wrong(check, got, expected, tolerance, lambda: layer_mistakes(parts, x_before, positions))
    check_tensor(check, "the stream afterwards", got, expected, ("token", "feature"), mistakes,
                 {"the stream from before": before}, dtype, tolerance)  # fmt: skip
    check.true("the stream from before is as it was", torch.equal(x, before), SAME)
    check.true("positions are as they were", torch.equal(positions, places), SAME)


@case("ch15.decoder_layer")
def four_tokens(engine, check):
    """Four tokens of one sequence, with gaps between their positions, and a stream of ten features."""
    ask_layer(engine, check, positions=[3, 4, 6, 9])


@case("ch15.decoder_layer")
def layer_of_two_sequences(engine, check):
    """Tokens of two sequences in one step, at positions of their own."""
    ask_layer(engine, check, (2, 3), [0, 1, 4, 5, 8], seed=2)


@case("ch15.decoder_layer")
def layer_of_one_token(engine, check):
    """A single token."""
    ask_layer(engine, check, (1,), [9], seed=4)


@case("ch15.decoder_layer")
def as_many_tokens_as_features(engine, check):
    """Eight tokens of eight features, one query head a KV head."""
    ask_layer(engine, check, (8,), seed=6, hidden=8, heads=2, kv_heads=2, head_dim=4, middle=8)


@case("ch15.decoder_layer")
def a_large_stream(engine, check):
    """A stream a hundred times as large, as in late layers; and one of a hundredth, as behind the embedding."""
    ask_layer(engine, check, (3,), seed=8, times=100.0)
    ask_layer(engine, check, (3,), seed=8, times=0.01)


@case("ch15.decoder_layer")
def layer_in_half_precision(engine, check):
    """A model in bfloat16: the stream is bfloat16, too."""
    ask_layer(engine, check, (3,), seed=10, dtype=torch.bfloat16, head_dim=8)


@case("ch15.decoder_layer")
def layer_again(engine, check):
    """The same layer twice on the same stream: both times the same comes back."""
    config = config_of()
    layer = fill(engine.get("models.qwen3:Qwen3DecoderLayer")(config, rotary_of(engine, config)), 12)
    x, positions = random_numbers(3, config.hidden_size, seed=13), torch.arange(3)
    check.step("the layer is called twice", LAYER_RAISED)
    with Step(engine, [3]), torch.no_grad():
        first = layer(positions, x)
        kept = first.clone() if isinstance(first, torch.Tensor) else None
        second = layer(positions, x)
    same = kept is not None and isinstance(second, torch.Tensor) and torch.equal(kept, second)
    check.true(
        "both results are equal", same, "The second call gives something else: a call has left something behind."
    )
    stays = kept is not None and torch.equal(kept, first)
    check.true("the first result is as it was", stays, "The first result has changed with the second call.")


# model


def streams_of(model, input_ids, positions, lengths):
    """The parts of a model in double precision: embeddings, layers, final norm."""
    weight, norm = model.embed_tokens.weight.double(), model.norm.weight.double()
    parts = [parts_of(layer, positions, lengths) for layer in model.layers]
    return SimpleNamespace(
        embedded=torch.stack([weight[i] for i in input_ids.tolist()]), norm=lambda x: rms(x, norm), table=weight,
        layers=[partial(after_layer, p) for p in parts], parts=parts,
    )  # fmt: skip


def through(layers, x, after=None):
    for layer in layers:
        x = layer(x)
        x = after(x) if after else x
    return x


def model_mistakes(s, input_ids, positions):
    """What each known mistake gives."""
    x, layers, norm = s.embedded, s.layers, s.norm
    size, each = x.shape[1], [layer(s.embedded) for layer in s.layers]
    streams = [through(layers[: i + 1], x) for i in range(len(layers))]

    def at(places):
        return norm(through([lambda x, p=p: after_at(p, x, places) for p in s.parts], x))

    def adding(x):
        for layer in layers:
            x = x + layer(x)
        return x

    found = {
        "The stream came back without the final norm: what self.norm returns is asked for.": through(layers, x),
        "Nothing of the layers is in it, this is the normalized embedding: a layer returns the new stream.": norm(x),
        "Nothing of the layers and of the norm is in it, this is the embedding: a layer returns the new stream.": x,
        "The layers came in the opposite order.": norm(through(layers[::-1], x)),
        "The layers came in the opposite order, and the final norm is missing.": through(layers[::-1], x),
        "The first layer was used for all.": norm(through([layers[0]] * len(layers), x)),
        "The last layer was used for all.": norm(through([layers[-1]] * len(layers), x)),
        "The last layer was left out.": norm(through(layers[:-1], x)),
        "The first layer was left out.": norm(through(layers[1:], x)),
        "Only the first layer was used.": norm(each[0]),
        "Only the last layer had an effect: each layer got the embeddings, not what the layer before it has made.":
            norm(each[-1]),
        "Every layer got the embeddings, and all results were added.": norm(sum(each)),
        "Every layer got the embeddings, and all results were added to these.": norm(x + sum(each)),
        "The stream was added to what each layer returns; a layer returns the stream, with its own part in it.":
            norm(adding(x)),
        "The stream was added to what each layer returns, and the final norm is missing.": adding(x),
        "The embeddings were added again at the end.": norm(x + through(layers, x)),
        "The final norm came after every layer; it comes once, at the end.": norm_after_each(s, x),
        "The final norm came after every layer, and once more at the end.": norm(through(layers, x, norm)),
        "The embeddings were normalized before the first layer.": norm(through(layers, norm(x))),
        "The final norm came before the layers, and is missing at the end.": through(layers, norm(x)),
        "The final norm was applied twice.": norm(norm(through(layers, x))),
        "The embeddings were scaled by the square root of the hidden size, as in another family of models.":
            norm(through(layers, x * size**0.5)),
        "The embeddings were divided by the square root of the hidden size.": norm(through(layers, x / size**0.5)),
        "The layers were gone through twice.": norm(through([*layers, *layers], x)),
        "The last layer came twice.": norm(through([*layers, layers[-1]], x)),
        "The first layer came twice.": norm(through([layers[0], *layers], x)),
        "Only every second layer was used.": norm(through(layers[::2], x)),
        "The positions were counted through the step, 0, 1, 2, ...; they are given.": at(torch.arange(len(x))),
        "All tokens were given position 0; positions are given.": at(torch.zeros(len(x))),
        "The token ids were taken for positions.": at(input_ids),
        "These are logits: the head is no part of this module.": norm(through(layers, x)) @ s.table.T,
        "These are logits, without the final norm: the head is no part of this module.": through(layers, x) @ s.table.T,
        "Only the last token came back; all are asked for.": norm(through(layers, x))[-1:],
        "Only the last token came back, without its dimension; all are asked for.": norm(through(layers, x))[-1],
        "The streams after all layers came back; only the last is asked for.":
            torch.stack([norm(through(layers[: i + 1], x)) for i in range(len(layers))]),
        "The positions were looked up as tokens.": at_tokens(s, positions),
        "The positions were looked up as tokens, and added to the embeddings.":
            norm(through(layers, x + s.table[positions % len(s.table)])),
        "The streams after all layers were added up; only the last goes on.": norm(sum(streams)),
        "The mean of the streams after all layers was taken; only the last goes on.": norm(sum(streams) / len(streams)),
        "The final norm came before every layer; layers have norms of their own.":
            norm(through([lambda x, f=f: f(norm(x)) for f in layers], x)),
        "The final norm came before every layer, and not at the end.":
            through([lambda x, f=f: f(norm(x)) for f in layers], x),
        "The result went through a softmax.": norm(through(layers, x)).softmax(-1),
        "The last norm is one of the last layer; the model has its own.": s.parts[-1].first(through(layers, x)),
        "The last norm is the second one of the last layer; the model has its own.":
            s.parts[-1].second(through(layers, x)),
        "Every layer was applied twice.": norm(through([f for f in layers for _ in range(2)], x)),
        "The last norm is without its weight.": rms(through(layers, x), 1.0),
        "The mean of the stream and of what each layer returns went on; a layer returns the stream.":
            norm(through([lambda x, f=f: (x + f(x)) / 2 for f in layers], x)),
        "The positions were taken in the opposite order.": at(positions.flip(0)),
        "The second layer and all after it were left out.": norm(streams[0]),
    }  # fmt: skip
    expected = norm(through(layers, x))
    return {text: wrong.float() for text, wrong in unlike(expected, found).items()}


def norm_after_each(s, x):
    return through(s.layers, x, s.norm)


def at_tokens(s, positions):
    rows = [s.table[p % len(s.table)] for p in positions.tolist()]
    return s.norm(through(s.layers, torch.stack(rows)))


MODEL_RAISED = {
    "RuntimeError": "Shapes or kinds do not fit: embed_tokens takes token ids, a layer takes positions and then the "
    "stream.",
    "IndexError": "Something was looked up that is not there: token ids and positions have changed places, or a layer "
    "was asked for by a number that it does not have.",
    "TypeError": "Something was called with other arguments than it takes: layer(positions, stream), norm(stream).",
    "NotImplementedError": "self.layers is a list of layers: it cannot be called, only gone through.",
    "AttributeError": "Something was asked of an object that does not have it. The model has embed_tokens, layers and "
    "norm.",
    "NameError": "A name is used that does not exist here; what belongs to the model begins with self.",
    "ValueError": "Something was unpacked into another number of parts than it has.",
    "AssertionError": "An assert failed, though the input is as it should be.",
}


def model_of(engine, config, seed, dtype=torch.float32):
    model = fill(engine.get("models.qwen3:Qwen3Model")(config), seed, dtype)
    for number, layer in enumerate(model.layers):
        fill(layer, 100 * seed + number, dtype)
    return model


def ask_model(engine, check, lengths=(4,), positions=None, seed=0, dtype=torch.float32, **sizes):
    """Have a model compute, and compare."""
    config = config_of(**sizes)
    model = model_of(engine, config, seed, dtype)
    positions = torch.tensor(positions or [p for length in lengths for p in range(length)])
    rng = random.Random(seed)
    input_ids = torch.tensor([rng.randrange(config.vocab_size) for _ in range(sum(lengths))])
    ids, places = input_ids.clone(), positions.clone()
    table = model.embed_tokens.weight.detach().clone()
    check.step(f"{config.num_hidden_layers} layers, tokens {ids.tolist()} at positions {positions.tolist()}",
               MODEL_RAISED)  # fmt: skip
    with Step(engine, lengths), torch.no_grad():
        got = model(input_ids, positions)
    s = streams_of(model, ids, positions, lengths)
    expected, tolerance = s.norm(through(s.layers, s.embedded)), 1e-4 if dtype == torch.float32 else 4e-2
    mistakes = if_wrong(check, got, expected, tolerance, lambda: model_mistakes(s, ids, positions))
    check_tensor(check, "the hidden states", got, expected, ("token", "feature"), mistakes, None, dtype, tolerance)
    stay = torch.equal(input_ids, ids) and torch.equal(positions, places)
    check.true("token ids and positions are as they were", stay, SAME)
    check.true("the embedding's weight is as it was", torch.equal(model.embed_tokens.weight, table), SAME)


@case("ch15.model")
def three_layers(engine, check):
    """A model of three layers reads four tokens, with gaps between their positions."""
    ask_model(engine, check, positions=[3, 4, 6, 9])


@case("ch15.model")
def model_of_two_sequences(engine, check):
    """Two sequences in one step, at positions of their own."""
    ask_model(engine, check, (3, 2), [0, 1, 4, 7, 9], seed=1)


@case("ch15.model")
def one_layer(engine, check):
    """A model of a single layer, and one of five."""
    ask_model(engine, check, (3,), seed=2, layers=1)
    ask_model(engine, check, (3,), [2, 3, 4], seed=3, layers=5)


@case("ch15.model")
def a_single_token(engine, check):
    """One token."""
    ask_model(engine, check, (1,), [5], seed=4)


@case("ch15.model")
def a_token_twice(engine, check):
    """A vocabulary of three tokens, so that tokens come again."""
    ask_model(engine, check, (6,), seed=5, vocab=3, layers=2)


@case("ch15.model")
def model_on_two_ranks(engine, check):
    """Two ranks share the vocabulary: `embed_tokens` of each holds half of the rows, and adds up what both have."""
    config, input_ids, positions = config_of(layers=1), torch.tensor([2, 9, 0]), torch.arange(3)
    models = [model_of(engine, config, 7) for _ in range(2)]
    s = streams_of(models[0], input_ids, positions, [3])
    group_of, table = engine.package.module("utils.parallel_state").tensor_parallel_group, s.table.float()
    per_rank = -(-config.vocab_size // 2)
    for rank, model in enumerate(models):
        with group_of(SimulatedGroup(rank, 2)):
            part = engine.get("layers.embed_head:VocabParallelEmbedding")(config.vocab_size, config.hidden_size)
        rows = table[rank * per_rank : (rank + 1) * per_rank]
        part.weight.data.zero_()[: len(rows)] = rows
        model.embed_tokens = part
    check.step("two ranks, a model of one layer: tokens [2, 9, 0]", MODEL_RAISED)

    def run(group):
        models[group.rank].embed_tokens.group = group
        with Step(engine, [3]):
            return models[group.rank](input_ids, positions)

    with torch.no_grad():
        results = together(2, run, most=4).results
    expected = s.norm(through(s.layers, s.embedded))
    text = "These are rows of this rank's part alone: embed_tokens adds up those of all ranks, its weight does not."
    for rank, got in enumerate(results):
        own = models[rank].embed_tokens.weight.double()[input_ids]
        mistakes = {text: s.norm(through(s.layers, own)).float()} if rank else {}
        check_tensor(check, f"what rank {rank} returns", got, expected, ("token", "feature"), mistakes,
                     dtype=torch.float32)  # fmt: skip


@case("ch15.model")
def model_asked_again(engine, check):
    """The same model reads three tokens, and then three others."""
    model, positions = model_of(engine, config_of(layers=1), 8), torch.arange(3)
    was_right = False
    for ids in ([3, 1, 4], [7, 0, 2]):
        check.step(f"a model of one layer: tokens {ids}", MODEL_RAISED)
        with Step(engine, [3]), torch.no_grad():
            got = model(torch.tensor(ids), positions)
        s = streams_of(model, torch.tensor(ids), positions, [3])
        expected = s.norm(through(s.layers, s.embedded))
        is_tensor = isinstance(got, torch.Tensor) and got.shape == expected.shape
        text = "The first call was right and the second is not: something of the first was kept in the model."
        mistakes = {text: got.clone()} if was_right and is_tensor else {}
        was_right = is_tensor and torch.allclose(got.double(), expected, atol=1e-3)
        check_tensor(check, "the hidden states", got, expected, ("token", "feature"), mistakes, dtype=torch.float32)


@case("ch15.model")
def model_in_half_precision(engine, check):
    """A model in bfloat16: the hidden states are bfloat16, too."""
    ask_model(engine, check, (3,), seed=6, dtype=torch.bfloat16, layers=2, head_dim=8)


# read_early


def guess(engine, check, early, late, new):
    """Have the streams guessed; returns them, or None if they are not of the kind that was asked for."""
    before = [x.clone() for x in (early, late, new)]
    got = engine.get("labs:read_early")(early, late, new)
    if not check.true("a tensor comes back", isinstance(got, torch.Tensor), "A tensor is asked for."):
        return None
    if not check.equal("its shape", list(got.shape), list(new.shape), "A row for each row of new is asked for."):
        return None
    check.true("all numbers are finite", bool(got.isfinite().all()))
    stay = all(torch.equal(x, y) for x, y in zip((early, late, new), before, strict=True))
    check.true("the three tensors are as they were", stay, SAME)
    return got


def why_few(known, other, got, share):
    """What an answer does that finds too few of the tokens."""
    new, head = other.early, model_work.head()
    plain = model_work.plain_lens(known.early, known.late, new)
    tokens, lens = ((x @ head.T).argmax(-1) for x in (got, plain))
    if float((got == known.late[(new @ known.early.T).argmax(-1)]).all(-1).float().mean()) > 0.99:
        return ("These are the known tokens whose streams have the largest dot product with the new one: long streams "
                "win every dot product. Compare directions, or distances.")  # fmt: skip
    if (tokens == tokens[0]).all():
        return "The head finds the same token for every row: the answer does not depend on new."
    if torch.equal(got, new) or float((tokens == lens).float().mean()) > 0.99:
        return ("The head finds what it finds with the plain lens: what the last two layers add is missing. The known "
                "tokens show it.")  # fmt: skip
    if share < model_work.PLAIN - 0.02:
        return "It is worse than the plain lens, which learns nothing from the known tokens."
    return "It is about as good as the plain lens, so it has learned little from the known tokens."


@case("ch15.read_early")
def stories_of_the_model(engine, check):
    """The bundled model reads stories; of half of them both streams are known, of the others only the early one."""
    known, other = model_work.known_and_other()
    check.step(f"{len(known.early):,} tokens are known, {len(other.early):,} are to be guessed")
    got = guess(engine, check, known.early, known.late, other.early)
    if got is None:
        return
    share = model_work.same_tokens(got, other)
    check.measured(f"the same token as the whole model: {100 * share:.1f} % of the time; the plain lens "
                   f"{100 * model_work.PLAIN:.1f} %")  # fmt: skip
    says = f"At least {100 * model_work.BAR:.0f} % are asked for, and it was {100 * share:.1f} %."
    if share < model_work.BAR and check.first is None:
        says += f" {why_few(known, other, got.float(), share)}"
    check.true(f"at least {100 * model_work.BAR:.0f} % the same", share >= model_work.BAR, says)


@case("ch15.read_early")
def each_row_by_itself(engine, check):
    """A row of the answer depends on its own row of `new` only: a token cannot know those after it."""
    known, other = model_work.known_and_other()
    early, late = known.early[:900], known.late[:900]
    check.step("twelve rows together, and three of them alone")
    got = guess(engine, check, early, late, other.early[:12])
    few = guess(engine, check, early, late, other.early[4:7])
    if got is not None and few is not None:
        same = torch.allclose(got[4:7], few, atol=1e-2 * float(got.abs().max()))
        check.true("the three rows are the same", same, "Rows depend on the other rows of new.")


@case("ch15.read_early")
def other_sizes(engine, check):
    """A model of another hidden size, and one row to guess."""
    early, late = random_numbers(60, 12), random_numbers(60, 12, seed=1)
    check.step("60 tokens are known, of 12 features")
    guess(engine, check, early, late, random_numbers(1, 12, seed=2))
