"""Attention backends against dense attention, with pages scattered over the pool."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nanovllm.layers.attention import Attention, store_kvcache
from nanovllm.layers.backends import get_attention_class
from nanovllm.utils.context import get_context, reset_context, set_context

BACKENDS = [
    pytest.param("sdpa", "cpu", id="sdpa-cpu"),
    pytest.param("sdpa", "cuda", marks=pytest.mark.gpu, id="sdpa-cuda"),
    pytest.param("triton", "cuda", marks=pytest.mark.gpu, id="triton"),
    pytest.param("flash_attn", "cuda", marks=pytest.mark.gpu, id="flash_attn"),
]


def attention_class(name):
    if name != "sdpa":
        pytest.importorskip(name)
    return get_attention_class(name)


def dense_attention(q, k, v, scale):
    """Attention of the last len(q) tokens of one sequence, written from the definition, in float64.

    q: [num_queries, num_heads, head_dim]; k, v: [num_tokens, num_kv_heads, head_dim].
    """
    q, k, v = q.double(), k.double(), v.double()
    ratio = q.shape[1] // k.shape[1]
    output = torch.empty_like(q)
    for i in range(len(q)):
        visible = len(k) - len(q) + i + 1
        for head in range(q.shape[1]):
            scores = k[:visible, head // ratio] @ q[i, head] * scale
            output[i, head] = scores.softmax(dim=-1) @ v[:visible, head // ratio]
    return output


class Batch:
    """Sequences whose keys and values lie in randomly chosen blocks; `cached` of their tokens are stored before."""

    def __init__(self, lengths, cached, block_size, heads, kv_heads, head_dim, seed, device, dtype, contiguous=False):
        generator = torch.Generator().manual_seed(seed)

        def randn(*shape):
            return torch.randn(*shape, generator=generator).to(device, dtype)

        self.lengths, self.cached, self.scale = lengths, cached, head_dim**-0.5
        self.q = [randn(length, heads, head_dim) for length in lengths]
        self.k = [randn(length, kv_heads, head_dim) for length in lengths]
        self.v = [randn(length, kv_heads, head_dim) for length in lengths]
        counts = [-(-length // block_size) for length in lengths]
        num_blocks = sum(counts) + 3
        order = torch.arange(num_blocks) if contiguous else torch.randperm(num_blocks, generator=generator)
        self.tables = [table.tolist() for table in order[: sum(counts)].split(counts)]
        self.block_size, self.device = block_size, device
        shape = (num_blocks, block_size, kv_heads, head_dim)
        # What was never stored must never be read; NaN would spread.
        self.k_cache = torch.full(shape, math.nan, device=device, dtype=dtype)
        self.v_cache = torch.full(shape, math.nan, device=device, dtype=dtype)
        self.layer = Attention(heads, head_dim, self.scale, kv_heads)
        self.layer.k_cache, self.layer.v_cache = self.k_cache, self.v_cache
        for i, count in enumerate(cached):
            if count:
                store_kvcache(self.k[i][:count], self.v[i][:count], self.k_cache, self.v_cache, self.slots(i, 0, count))

    def slots(self, i, start, end):
        positions = torch.arange(start, end)
        blocks = torch.tensor(self.tables[i])[positions // self.block_size]
        return (blocks * self.block_size + positions % self.block_size).to(self.device)

    def int32(self, values):
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def padded_tables(self):
        width = max(map(len, self.tables))
        return self.int32([table + [-1] * (width - len(table)) for table in self.tables])

    def new(self, x):
        return torch.cat([rows[count:] for rows, count in zip(x, self.cached, strict=True)])

    def prefill(self, layer_class=Attention):
        new = [length - count for length, count in zip(self.lengths, self.cached, strict=True)]
        self.layer.__class__ = layer_class
        set_context(
            is_prefill=True,
            cu_seqlens_q=self.int32([0, *torch.tensor(new).cumsum(0).tolist()]),
            cu_seqlens_k=self.int32([0, *torch.tensor(self.lengths).cumsum(0).tolist()]),
            max_seqlen_q=max(new),
            max_seqlen_k=max(self.lengths),
            slot_mapping=torch.cat([self.slots(i, c, n) for i, (c, n) in enumerate(self.pairs())]),
            block_tables=self.padded_tables() if any(self.cached) else None,
        )
        return self.run()

    def decode(self, layer_class=Attention):
        self.layer.__class__ = layer_class
        set_context(
            is_prefill=False,
            slot_mapping=torch.cat([self.slots(i, length - 1, length) for i, length in enumerate(self.lengths)]),
            context_lens=self.int32(self.lengths),
            block_tables=self.padded_tables(),
        )
        return self.run()

    def pairs(self):
        return zip(self.cached, self.lengths, strict=True)

    def run(self):
        try:
            return self.layer(self.new(self.q), self.new(self.k), self.new(self.v))
        finally:
            reset_context()

    def expected(self):
        rows = [
            dense_attention(q[count:].cpu(), k.cpu(), v.cpu(), self.scale)
            for q, k, v, count in zip(self.q, self.k, self.v, self.cached, strict=True)
        ]
        return torch.cat(rows)

    def assert_close(self, output):
        tolerance = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}[output.dtype]
        torch.testing.assert_close(output.cpu().double(), self.expected(), atol=tolerance, rtol=tolerance)


@st.composite
def batches(draw, decode):
    lengths = draw(st.lists(st.integers(1, 40), min_size=1, max_size=4))
    if decode:
        cached = [length - 1 for length in lengths]
    else:
        has_prefix = draw(st.booleans())
        cached = [draw(st.integers(0, length - 1)) if has_prefix else 0 for length in lengths]
    kv_heads = draw(st.integers(1, 3))
    return {
        "lengths": lengths,
        "cached": cached,
        "block_size": draw(st.sampled_from([1, 2, 3, 4, 7, 16, 256])),
        "kv_heads": kv_heads,
        "heads": kv_heads * draw(st.sampled_from([1, 2, 3, 8])),
        "head_dim": draw(st.sampled_from([2, 8, 24])),
        "seed": draw(st.integers(0, 1000)),
        "contiguous": draw(st.booleans()),
    }


@given(batches(decode=False))
@settings(max_examples=60)
def test_prefill_is_dense_attention(options):
    batch = Batch(**options, device="cpu", dtype=torch.float32)
    batch.assert_close(batch.prefill(get_attention_class("sdpa")))


@given(batches(decode=True))
@settings(max_examples=60)
def test_decode_is_dense_attention(options):
    batch = Batch(**options, device="cpu", dtype=torch.float32)
    batch.assert_close(batch.decode(get_attention_class("sdpa")))


@pytest.mark.parametrize("name, device", BACKENDS)
@pytest.mark.parametrize("heads, kv_heads", [(4, 4), (8, 2), (16, 2), (6, 2)])
def test_every_backend_in_half_precision(name, device, heads, kv_heads):
    options = {"block_size": 256, "heads": heads, "kv_heads": kv_heads, "head_dim": 64, "seed": 1, "device": device}
    layer_class = attention_class(name)
    for dtype in (torch.bfloat16, torch.float16):
        batch = Batch([5, 300, 1], [0, 0, 0], dtype=dtype, **options)
        batch.assert_close(batch.prefill(layer_class))
        batch = Batch([290, 30, 600], [256, 0, 512], dtype=dtype, **options)
        batch.assert_close(batch.prefill(layer_class))
        batch = Batch([1, 256, 257, 700], [0, 255, 256, 699], dtype=dtype, **options)
        batch.assert_close(batch.decode(layer_class))


@pytest.mark.parametrize("name, device", BACKENDS)
@pytest.mark.parametrize("sharer_comes_first", [False, True])
def test_a_layer_stores_the_whole_batch_before_any_row_attends(name, device, sharer_comes_first):
    """One sequence fills a block in the very step in which another one reads it as its prefix."""
    block_size, dtype = 256, torch.bfloat16
    batch = Batch([block_size + 5, block_size + 9], [0, 0], block_size, 4, 2, 64, 7, device, dtype)
    owner, sharer = (1, 0) if sharer_comes_first else (0, 1)
    # Equal tokens have equal keys and values.
    for x in (batch.k, batch.v):
        x[sharer][:block_size] = x[owner][:block_size]
    batch.tables[sharer][0] = batch.tables[owner][0]
    batch.cached[sharer] = block_size
    batch.assert_close(batch.prefill(attention_class(name)))


def test_new_keys_and_values_land_in_their_slots_and_nowhere_else():
    batch = Batch([6, 3], [2, 0], 4, 2, 1, 8, 3, "cpu", torch.float32)
    before = batch.k_cache.clone()
    batch.prefill(get_attention_class("sdpa"))
    written = torch.zeros(batch.k_cache.shape[:2], dtype=torch.bool).flatten()
    for i, (count, length) in enumerate(batch.pairs()):
        slots = batch.slots(i, count, length)
        written[slots] = True
        torch.testing.assert_close(batch.k_cache.flatten(0, 1)[slots], batch.k[i][count:])
        torch.testing.assert_close(batch.v_cache.flatten(0, 1)[slots], batch.v[i][count:])
    untouched = ~written
    torch.testing.assert_close(
        batch.k_cache.flatten(0, 1)[untouched], before.flatten(0, 1)[untouched], equal_nan=True, rtol=0, atol=0
    )


def test_decode_reads_no_padding_and_no_block_of_others():
    # All other slots hold NaN or huge numbers; one that was read would show.
    batch = Batch([5, 9], [4, 8], 4, 4, 2, 8, 5, "cpu", torch.float32)
    mine = torch.zeros(batch.k_cache.shape[:2], dtype=torch.bool).flatten()
    for i, length in enumerate(batch.lengths):
        mine[batch.slots(i, 0, length)] = True
    batch.k_cache.flatten(0, 1)[~mine] = 1e30
    batch.v_cache.flatten(0, 1)[~mine] = -1e30
    batch.assert_close(batch.decode(get_attention_class("sdpa")))


def test_warm_up_attends_without_a_cache():
    batch = Batch([4, 2], [0, 0], 4, 2, 1, 8, 1, "cpu", torch.float32)
    batch.layer.k_cache = batch.layer.v_cache = torch.empty(0)
    batch.assert_close(batch.prefill(get_attention_class("sdpa")))


def test_the_context_is_forgotten_after_a_step():
    set_context(is_prefill=True, max_seqlen_q=3)
    reset_context()
    assert not get_context().is_prefill and get_context().slot_mapping is None
