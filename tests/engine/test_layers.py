"""Layers against torch.nn.functional and Hugging Face; shards of every rank against the full layer."""

import importlib.util
import threading

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, Qwen3RotaryEmbedding, apply_rotary_pos_emb

from nanovllm.layers.activation import SiluAndMul
from nanovllm.layers.embed_head import ParallelLMHead, VocabParallelEmbedding
from nanovllm.layers.layernorm import RMSNorm
from nanovllm.layers.linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
)
from nanovllm.layers.rotary_embedding import RotaryEmbedding, apply_rotary_emb, get_rope
from nanovllm.levers.cuda_graph import HeadIntoBuffer
from nanovllm.model_files import load_hf_config
from nanovllm.models.qwen3 import Qwen3ForCausalLM
from nanovllm.utils.context import Context, get_context, reset_context, set_context
from nanovllm.utils.loader import load_model
from nanovllm.utils.parallel_state import TensorParallelGroup, get_tensor_parallel_group, tensor_parallel_group
from nanovllm.utils.swap import swap

from .conftest import make_tiny_model
from .reference import LOGITS_TOLERANCE, Reference, edit_json, make_smooth_model

RANKS = range(1, 9)
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# Norms, activation, rotary embedding.


@given(st.integers(1, 5), st.integers(1, 40), st.sampled_from([1e-6, 1e-2]), st.sampled_from([1e-3, 1.0, 1e3]))
@settings(max_examples=30)
def test_rms_norm(rows, size, eps, scale):
    layer = RMSNorm(size, eps)
    layer.weight.data = randn(size, seed=1)
    x, residual = randn(rows, 2, size) * scale, randn(rows, 2, size, seed=2)
    torch.testing.assert_close(layer(x), F.rms_norm(x, (size,), layer.weight, eps))
    normed, total = layer(x, residual)
    torch.testing.assert_close(total, x + residual)
    torch.testing.assert_close(normed, F.rms_norm(x + residual, (size,), layer.weight, eps))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rms_norm_is_that_of_hugging_face_in_every_dtype(dtype):
    theirs, ours = Qwen3RMSNorm(64, 1e-6).to(dtype), RMSNorm(64, 1e-6).to(dtype)
    theirs.weight.data = ours.weight.data = randn(64).to(dtype)
    x = (randn(5, 64, seed=1) * 10).to(dtype)
    assert ours(x).dtype == dtype
    torch.testing.assert_close(ours(x), theirs(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_leaves_its_inputs_as_they_are(dtype):
    # In float32, `x.float()` is `x` itself, so that an operation in place would change the residual stream.
    layer, x, residual = RMSNorm(8).to(dtype), randn(3, 8).to(dtype), randn(3, 8, seed=1).to(dtype)
    x_before, residual_before = x.clone(), residual.clone()
    layer(x)
    _, total = layer(x, residual)
    layer(total)
    assert torch.equal(x, x_before) and torch.equal(residual, residual_before)
    assert torch.equal(total, x_before + residual_before)


def test_rms_norm_of_zeros_is_zero():
    assert torch.equal(RMSNorm(4)(torch.zeros(2, 4)), torch.zeros(2, 4))


def test_silu_and_mul():
    gate, up = randn(3, 5), randn(3, 5, seed=1)
    expected = gate.double() / (1 + torch.exp(-gate.double())) * up.double()
    torch.testing.assert_close(SiluAndMul()(torch.cat((gate, up), dim=-1)), expected.float())


@given(
    head_dim=st.sampled_from([2, 4, 6, 64]),
    base=st.sampled_from([3.0, 1e4, 1e6]),
    heads=st.tuples(*[st.integers(1, 4)] * 2),
)
@settings(max_examples=20)
def test_rotary_embedding_is_a_rotation_of_complex_numbers(head_dim, base, heads):
    positions = torch.tensor([0, 1, 2, 17, 99, 5])
    q, k = randn(6, heads[0], head_dim), randn(6, heads[1], head_dim, seed=1)
    angles = torch.outer(positions.double(), base ** (-torch.arange(head_dim // 2).double() * 2 / head_dim))
    for x, rotated in zip((q, k), RotaryEmbedding(head_dim, 100, base)(positions, q, k), strict=True):
        first, second = x.double().chunk(2, dim=-1)
        turned = torch.complex(first, second) * torch.exp(1j * angles).unsqueeze(1)
        torch.testing.assert_close(rotated, torch.cat((turned.real, turned.imag), dim=-1).float(), atol=2e-5, rtol=1e-5)


def test_rotary_embedding_is_that_of_hugging_face():
    # Far positions tell: there the rounding of the frequencies grows to angles that matter.
    config = Qwen3Config(head_dim=16, max_position_embeddings=40_960, rope_theta=5000.0)
    theirs, ours = Qwen3RotaryEmbedding(config), get_rope(16, 40_960, 5000.0)
    positions = torch.arange(300) * 136
    q, k = randn(300, 4, 16), randn(300, 2, 16, seed=1)
    cos, sin = theirs(q, positions.unsqueeze(0))
    expected = apply_rotary_pos_emb(q.transpose(0, 1).unsqueeze(0), k.transpose(0, 1).unsqueeze(0), cos, sin)
    for got, want in zip(ours(positions, q, k), expected, strict=True):
        torch.testing.assert_close(got, want.squeeze(0).transpose(0, 1), atol=1e-5, rtol=1e-5)


def test_scores_depend_on_the_distance_alone():
    rope = get_rope(32, 200, 1e4)
    q, k = randn(1, 1, 32).expand(3, 1, 32), randn(1, 1, 32, seed=1).expand(3, 1, 32)
    rotated_q, _ = rope(torch.tensor([7, 57, 187]), q, k)
    _, rotated_k = rope(torch.tensor([2, 52, 182]), q, k)
    scores = (rotated_q * rotated_k).sum(dim=-1).flatten()
    torch.testing.assert_close(scores, scores[:1].expand(3), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rotary_embedding_computes_in_float32(dtype):
    x, angles = randn(4, 2, 8).to(dtype), randn(4, 1, 4, seed=1)
    got = apply_rotary_emb(x, angles.cos(), angles.sin())
    assert got.dtype == dtype
    assert torch.equal(got, apply_rotary_emb(x.float(), angles.cos(), angles.sin()).to(dtype))


# Shards: the layers of all ranks, put together, are the full layer.


class LocalGroup(TensorParallelGroup):
    """A rank that keeps its partial result, so that a test can put the results of all ranks together."""

    def all_reduce(self, x):
        return x

    def gather(self, x):
        return x


def layers_of_all_ranks(size, build):
    layers = []
    for rank in range(size):
        with tensor_parallel_group(LocalGroup(rank, size)):
            layers.append(build())
    return layers


def load(layer, name, tensor, *shard_id):
    parameter = getattr(layer, name)
    parameter.data.fill_(torch.nan)  # what the loader forgets shows up
    parameter.weight_loader(parameter, tensor, *shard_id)


def test_the_group_is_restored():
    before = get_tensor_parallel_group()
    with pytest.raises(RuntimeError, match="inside"), tensor_parallel_group(TensorParallelGroup(1, 2)):
        assert get_tensor_parallel_group() == TensorParallelGroup(1, 2)
        raise RuntimeError("inside")
    assert get_tensor_parallel_group() is before


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("size", RANKS)
def test_replicated_linear(size, bias):
    weight, b, x = randn(7, 5), randn(7, seed=1), randn(3, 5, seed=2)
    for layer in layers_of_all_ranks(size, lambda: ReplicatedLinear(5, 7, bias)):
        load(layer, "weight", weight)
        if bias:
            load(layer, "bias", b)
        torch.testing.assert_close(layer(x), F.linear(x, weight, b if bias else None))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("size", RANKS)
def test_column_parallel_linear(size, bias):
    weight, b, x = randn(3 * size, 5), randn(3 * size, seed=1), randn(2, 4, 5, seed=2)
    layers = layers_of_all_ranks(size, lambda: ColumnParallelLinear(5, 3 * size, bias))
    for layer in layers:
        load(layer, "weight", weight)
        if bias:
            load(layer, "bias", b)
        assert layer.weight.shape == (3, 5)
    together = torch.cat([layer(x) for layer in layers], dim=-1)
    torch.testing.assert_close(together, F.linear(x, weight, b if bias else None))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("size", RANKS)
def test_row_parallel_linear_adds_the_bias_once(size, bias):
    weight, b, x = randn(5, 3 * size), randn(5, seed=1), randn(4, 3 * size, seed=2)
    layers = layers_of_all_ranks(size, lambda: RowParallelLinear(3 * size, 5, bias))
    for layer in layers:
        load(layer, "weight", weight)
        if bias:
            load(layer, "bias", b)
        assert layer.weight.shape == (5, 3)
    total = sum(layer(part) for layer, part in zip(layers, x.chunk(size, dim=-1), strict=True))
    torch.testing.assert_close(total, F.linear(x, weight, b if bias else None))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("size", RANKS)
def test_merged_column_parallel_linear(size, bias):
    sizes = [2 * size, 5 * size, size]
    weights = [randn(n, 6, seed=n) for n in sizes]
    biases = [randn(n, seed=100 + n) for n in sizes]
    x = randn(3, 6, seed=9)
    layers = layers_of_all_ranks(size, lambda: MergedColumnParallelLinear(6, sizes, bias))
    parts = [[], [], []]
    for layer in layers:
        layer.weight.data.fill_(torch.nan)
        for i in (2, 0, 1):  # in any order
            layer.weight.weight_loader(layer.weight, weights[i], i)
            if bias:
                layer.bias.weight_loader(layer.bias, biases[i], i)
        for part, output in zip(parts, layer(x).split([n // size for n in sizes], dim=-1), strict=True):
            part.append(output)
    for part, weight, b in zip(parts, weights, biases, strict=True):
        torch.testing.assert_close(torch.cat(part, dim=-1), F.linear(x, weight, b if bias else None))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    "size, num_kv_heads", [(n, kv) for n in RANKS for kv in (1, 2, 4, 8) if kv % n == 0 or n % kv == 0]
)
def test_qkv_parallel_linear(size, num_kv_heads, bias):
    head_dim, num_heads = 3, size * num_kv_heads
    weights = {name: randn(n * head_dim, 6, seed=n) for name, n in (("q", num_heads), ("k", num_kv_heads))}
    weights["v"] = randn(num_kv_heads * head_dim, 6, seed=77)
    biases = {name: randn(len(weight), seed=5) for name, weight in weights.items()}
    x = randn(4, 6, seed=3)
    full = {name: F.linear(x, weight, biases[name] if bias else None) for name, weight in weights.items()}
    full = {name: output.unflatten(-1, (-1, head_dim)) for name, output in full.items()}
    ratio = num_heads // num_kv_heads
    layers = layers_of_all_ranks(size, lambda: QKVParallelLinear(6, head_dim, num_heads, num_kv_heads, bias))
    queries = []
    for layer in layers:
        layer.weight.data.fill_(torch.nan)
        for name in ("v", "q", "k"):
            layer.weight.weight_loader(layer.weight, weights[name], name)
            if bias:
                layer.bias.weight_loader(layer.bias, biases[name], name)
        heads = layer(x).unflatten(-1, (-1, head_dim))
        q, k, v = heads.split([layer.num_heads, layer.num_kv_heads, layer.num_kv_heads], dim=1)
        first = len(queries) * layer.num_heads
        queries.append(q)
        # The keys on a rank are those that its queries attend to, in the same order.
        local_ratio = layer.num_heads // layer.num_kv_heads
        for i in range(layer.num_heads):
            torch.testing.assert_close(k[:, i // local_ratio], full["k"][:, (first + i) // ratio])
            torch.testing.assert_close(v[:, i // local_ratio], full["v"][:, (first + i) // ratio])
    torch.testing.assert_close(torch.cat(queries, dim=1), full["q"])


@pytest.mark.parametrize("vocab_size", [8, 13, 50])
@pytest.mark.parametrize("size", RANKS)
def test_vocab_parallel_embedding(size, vocab_size):
    weight, token_ids = randn(vocab_size, 5), torch.arange(vocab_size).flip(0)
    layers = layers_of_all_ranks(size, lambda: VocabParallelEmbedding(vocab_size, 5))
    for layer in layers:
        load(layer, "weight", weight)
        assert len(layer.weight) == -(-vocab_size // size)
    assert torch.equal(sum(layer(token_ids) for layer in layers), weight.flip(0))


@pytest.mark.parametrize("vocab_size", [8, 13, 50])
@pytest.mark.parametrize("size", RANKS)
def test_parallel_lm_head_pads_no_token_into_the_logits(size, vocab_size):
    weight, hidden_states = randn(vocab_size, 5), randn(9, 5, seed=1)
    parts = {}

    class Gather(LocalGroup):
        def gather(self, x):
            parts[self.rank] = x
            return torch.cat([parts[rank] for rank in range(self.size)], dim=-1) if self.rank == 0 else None

    heads = []
    for rank in range(size):
        with tensor_parallel_group(Gather(rank, size)):
            heads.append(ParallelLMHead(vocab_size, 5))
        load(heads[-1], "weight", weight)
    set_context(is_prefill=True, cu_seqlens_q=torch.tensor([0, 4, 5, 9], dtype=torch.int32))
    try:
        outputs = [head(hidden_states) for head in reversed(heads)]  # rank 0 comes last, and has all parts then
    finally:
        reset_context()
    assert all(output is None for output in outputs[:-1])
    torch.testing.assert_close(outputs[-1], F.linear(hidden_states[[3, 4, 8]], weight))
    set_context(is_prefill=False)
    try:
        outputs = [head(hidden_states) for head in reversed(heads)]
    finally:
        reset_context()
    torch.testing.assert_close(outputs[-1], F.linear(hidden_states, weight))
    # And, in the lever of CUDA graphs, into the buffer of rank 0, no row too many; but not in a prefill.
    buffer = torch.full((11, vocab_size), torch.nan)
    for head in heads:
        swap(head, ParallelLMHead, HeadIntoBuffer)
    heads[0].logits = buffer
    set_context(is_prefill=True, cu_seqlens_q=torch.tensor([0, 4, 5, 9], dtype=torch.int32))
    try:
        outputs = [head(hidden_states) for head in reversed(heads)]
    finally:
        reset_context()
    torch.testing.assert_close(outputs[-1], F.linear(hidden_states[[3, 4, 8]], weight))
    assert buffer.isnan().all()
    set_context(is_prefill=False)
    try:
        outputs = [head(hidden_states) for head in reversed(heads)]
    finally:
        reset_context()
    assert all(output is None for output in outputs[:-1])
    assert outputs[-1].data_ptr() == buffer.data_ptr() and outputs[-1].shape == (9, vocab_size)
    torch.testing.assert_close(buffer[:9], F.linear(hidden_states, weight))
    assert buffer[9:].isnan().all()


@pytest.mark.parametrize(
    "build",
    [
        lambda: ColumnParallelLinear(4, 7),
        lambda: RowParallelLinear(7, 4),
        lambda: MergedColumnParallelLinear(4, [4, 7]),
        lambda: QKVParallelLinear(4, 2, 3, 1),
        lambda: QKVParallelLinear(4, 2, 6, 3),
    ],
)
def test_sizes_that_do_not_divide_are_refused(build):
    with tensor_parallel_group(TensorParallelGroup(0, 2)), pytest.raises(ValueError, match=r"\d"):
        build()


# The whole model, a thread a rank.


class ThreadGroup(TensorParallelGroup):
    """Ranks that are threads of this process and meet at a barrier."""

    def __init__(self, rank, size, shared):
        super().__init__(rank, size)
        object.__setattr__(self, "shared", shared)

    def exchange(self, x):
        self.shared["parts"][self.rank] = x.clone()
        self.shared["barrier"].wait(timeout=30)
        parts = [part.clone() for part in self.shared["parts"]]
        self.shared["barrier"].wait(timeout=30)
        return parts

    def all_reduce(self, x):
        return x.copy_(sum(self.exchange(x)))

    def gather(self, x):
        parts = self.exchange(x)
        return torch.cat(parts, dim=-1) if self.rank == 0 else None


def run_on_ranks(size, work):
    """What `work(rank)` returns on every rank, inside its `tensor_parallel_group`."""
    shared = {"parts": [None] * size, "barrier": threading.Barrier(size)}
    results, errors = [None] * size, []

    @torch.inference_mode()
    def run(rank):
        try:
            with tensor_parallel_group(ThreadGroup(rank, size, shared)):
                results[rank] = work(rank)
        except BaseException as error:
            errors.append(error)
            shared["barrier"].abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def logits_of_ranks(path, size, token_ids):
    def work(rank):
        model = Qwen3ForCausalLM(load_hf_config(path))
        load_model(model, path)
        lengths = torch.tensor([0, len(token_ids)], dtype=torch.int32)
        set_context(is_prefill=True, cu_seqlens_q=lengths, cu_seqlens_k=lengths)
        return model.compute_logits(model(torch.tensor(token_ids), torch.arange(len(token_ids))))

    logits, *others = run_on_ranks(size, work)
    assert others == [None] * (size - 1)
    return logits


@needs_triton
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("size", RANKS)
def test_row_parallel_linear_adds_to_a_stream_in_place(size, bias):
    """As the lever of the fused norms calls it."""
    from nanovllm.levers.fused_norm import add_to

    weight, b, x, stream = randn(5, 3 * size), randn(5, seed=1), randn(4, 3 * size, seed=2), randn(4, 5, seed=3)

    def work(rank):
        layer = RowParallelLinear(3 * size, 5, bias)
        load(layer, "weight", weight)
        if bias:
            load(layer, "bias", b)
        own_stream = stream.clone()
        assert add_to(own_stream, layer, x.chunk(size, dim=-1)[rank]) is own_stream
        return own_stream

    for result in run_on_ranks(size, work):
        torch.testing.assert_close(result, stream + F.linear(x, weight, b if bias else None))


@pytest.mark.parametrize(
    "size, kv_heads, heads", [(1, 2, 8), (2, 2, 8), (2, 1, 4), (3, 3, 6), (4, 2, 8), (8, 4, 8), (8, 1, 8)]
)
def test_the_model_split_over_ranks_is_the_model(tmp_path, size, kv_heads, heads):
    path = make_smooth_model(
        tmp_path,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        attention_bias=True,
        tie_word_embeddings=size % 2 == 0,
        vocab_size=101,
        hidden_size=36,
        intermediate_size=24,
    )
    token_ids = list(range(20, 32))
    logits = logits_of_ranks(path, size, token_ids)
    assert logits.shape == (1, 101)
    torch.testing.assert_close(logits[0], Reference(path).logits(token_ids)[-1], atol=LOGITS_TOLERANCE, rtol=0)


@needs_triton
def test_folded_norms_leave_the_result_as_it_is(tmp_path):
    from nanovllm.levers import folded_norm

    path = make_tiny_model(tmp_path)
    model = Qwen3ForCausalLM(load_hf_config(path))
    load_model(model, path)
    token_ids = torch.arange(20, 32)
    lengths = torch.tensor([0, 12], dtype=torch.int32)
    set_context(is_prefill=True, cu_seqlens_q=lengths, cu_seqlens_k=lengths)
    try:
        with torch.inference_mode():
            expected = model(token_ids, torch.arange(12))
            for _ in range(2):  # to fold what is folded is to do nothing
                folded_norm.install(model, None)
                # Without a cache the plain forward runs, on weights that the norms have become part of.
                torch.testing.assert_close(model(token_ids, torch.arange(12)), expected, atol=1e-4, rtol=1e-4)
    finally:
        reset_context()
    assert all((layer.input_layernorm.weight == 1).all() for layer in model.model.layers), "what this compares"


def test_the_context_that_a_thread_sets_is_its_own():
    seen = []

    def other():
        seen.append(get_context())
        set_context(is_prefill=True)
        seen.append(get_context().is_prefill)

    reset_context()
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == [Context(), True]
    assert get_context() == Context()


def test_a_model_without_head_dim_in_its_config_uses_the_default_of_hugging_face(tmp_path):
    path = make_tiny_model(tmp_path, head_dim=128, num_attention_heads=2, num_key_value_heads=1)
    edit_json(path / "config.json", remove=("head_dim",))
    model = Qwen3ForCausalLM(load_hf_config(path))
    load_model(model, path)
    assert model.model.layers[0].self_attn.head_dim == 128
