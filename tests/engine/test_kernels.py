"""The Triton kernels; without a GPU in the interpreter, which has to be chosen before triton is imported."""

import importlib.util
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

HAS_TRITON = importlib.util.find_spec("triton") is not None
# Before 3.7, Triton's interpreter cannot loop up to a tensor's value with NumPy 2.4 (triton-lang/triton#9171).
CAN_INTERPRET_LOOPS = HAS_TRITON and (
    Version(np.__version__) < Version("2.4") or Version(version("triton")) >= Version("3.7")
)

needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="triton is not installed")
needs_interpreted_loops = pytest.mark.skipif(not CAN_INTERPRET_LOOPS, reason="no triton, or too old for this numpy")


def check_store_kvcache(device, dtype, num_tokens, num_kv_heads, head_dim, block_size, layout):
    """Compare the kernel with the PyTorch version, and both with a loop."""
    from nanovllm.layers.attention import store_kvcache
    from nanovllm.layers.kernels.store_kvcache import store_kvcache_triton

    generator = torch.Generator().manual_seed(num_tokens)

    def randn(*shape):
        return torch.randn(*shape, generator=generator).to(device, dtype)

    if layout == "contiguous":
        key, value = randn(num_tokens, num_kv_heads, head_dim), randn(num_tokens, num_kv_heads, head_dim)
    else:  # parts of a packed projection, as the model passes them
        packed = randn(num_tokens, 3 * num_kv_heads, head_dim)
        _, key, value = packed.split(num_kv_heads, dim=1)
    num_blocks = -(-num_tokens // block_size) + 2
    before_k = randn(num_blocks, block_size, num_kv_heads, head_dim)
    before_v = randn(num_blocks, block_size, num_kv_heads, head_dim)
    slots = torch.randperm(num_blocks * block_size, generator=generator)[:num_tokens].to(device)
    expected_k, expected_v = before_k.clone(), before_v.clone()
    for i, slot in enumerate(slots.tolist()):
        expected_k[slot // block_size, slot % block_size] = key[i]
        expected_v[slot // block_size, slot % block_size] = value[i]
    for store in (store_kvcache, store_kvcache_triton):
        k_cache, v_cache = before_k.clone(), before_v.clone()
        store(key, value, k_cache, v_cache, slots)
        # A copy is exact.
        assert torch.equal(k_cache, expected_k), f"{store.__name__}: keys"
        assert torch.equal(v_cache, expected_v), f"{store.__name__}: values"


CASES = [
    # tokens, KV heads, head_dim, block size, layout; row sizes that are no powers of two are masked
    (1, 1, 2, 1, "contiguous"),
    (7, 2, 16, 4, "contiguous"),
    (5, 3, 8, 16, "packed"),
    (9, 1, 20, 3, "packed"),
]


def check_all(device, dtype):
    for case in CASES:
        check_store_kvcache(device, dtype, *case)


def check_bad_layouts(device):
    from nanovllm.layers.kernels.store_kvcache import store_kvcache_triton

    rows, cache = torch.zeros(3, 2, 4, device=device), torch.zeros(2, 2, 2, 4, device=device)
    slots = torch.arange(3, device=device)
    cases = {
        "key": (rows.transpose(1, 2).contiguous().transpose(1, 2), rows, cache, cache),
        "value": (rows, torch.zeros(3, 2, 8, device=device)[..., ::2], cache, cache),
        "cache": (rows, rows, torch.zeros(2, 2, 2, 8, device=device)[..., ::2], cache),
    }
    for name, arguments in cases.items():
        with pytest.raises(ValueError, match=name):
            store_kvcache_triton(*arguments, slots)


def run_interpreted(code, timeout=100):
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    lines = f"import torch\nfrom tests.engine.test_kernels import *\n{code}\nprint('done')"
    command = [sys.executable, "-c", lines]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout)
    assert result.returncode == 0 and result.stdout.strip().endswith("done"), result.stdout + result.stderr


@needs_triton
def test_kernels_in_the_interpreter():
    run_interpreted(
        "for dtype in DTYPES.values():\n    check_all('cpu', dtype)\n"
        "check_bad_layouts('cpu')\n"
        "import triton\n"
        "assert triton.runtime.interpreter.InterpretedFunction is type(\n"
        "    __import__('nanovllm.layers.kernels.store_kvcache', fromlist=['x']).store_kvcache_kernel)"
    )


# lengths, cached tokens, block size, heads, KV heads; a prefill stores what is not cached
ATTENTION_CASES = [
    ([1], [0], 16, 2, 2),
    ([5, 33, 1], [0, 0, 0], 16, 4, 2),
    ([7, 20, 3], [4, 17, 0], 4, 8, 1),
    ([18, 50], [16, 3], 16, 6, 2),
    ([9, 64, 65], [1, 63, 64], 32, 5, 1),
]


def check_attention(device, dtype, cases=ATTENTION_CASES, head_dim=16, kilobytes=None):
    """Compare the Triton backend with dense attention; `kilobytes`: on a GPU with so little shared memory."""
    from nanovllm.layers.backends import get_attention_class
    from nanovllm.layers.kernels import paged_attention
    from tests.engine.test_attention import Batch

    layer_class = get_attention_class("triton")
    if kilobytes is not None:
        paged_attention.shared_memory = lambda device: kilobytes * 1024
    options = {"head_dim": head_dim, "device": device, "dtype": dtype}
    for seed, (lengths, cached, block_size, heads, kv_heads) in enumerate(cases):
        options |= {"heads": heads, "kv_heads": kv_heads, "seed": seed}
        batch = Batch(lengths, cached, block_size, **options)
        batch.assert_close(batch.prefill(layer_class))
        batch = Batch(lengths, [length - 1 for length in lengths], block_size, **options)
        batch.assert_close(batch.decode(layer_class))


@needs_interpreted_loops
def test_attention_in_the_interpreter():
    # The interpreter computes bfloat16 arithmetic wrongly, so that this dtype shows what is not cast first.
    run_interpreted("check_attention('cpu', torch.bfloat16, ATTENTION_CASES[2:3])")


@needs_interpreted_loops
@pytest.mark.slow
@pytest.mark.parametrize("head_dim", [128, 256])
def test_attention_with_the_tiles_of_a_small_gpu_in_the_interpreter(head_dim):
    cases = [([18, 50], [16, 3], 16, 2, 1), ([5, 70], [0, 0], 16, 1, 1)]
    run_interpreted(f"check_attention('cpu', torch.float32, {cases}, {head_dim}, kilobytes=64)")


@needs_interpreted_loops
@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_in_the_interpreter_all_cases(dtype):
    run_interpreted(f"check_attention('cpu', DTYPES[{dtype!r}])")


def tolerance_of(dtype):
    tolerance = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}[dtype]
    return {"atol": tolerance, "rtol": tolerance}


def randoms(seed, device, dtype):
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=generator).to(device, dtype)


def wait_for(device):
    """An overlapping kernel reads what it takes for constant before the kernels before it have ended."""
    if device == "cuda":
        torch.cuda.synchronize()


def check_fused_kernels(device, dtype, sizes=((1, 7), (3, 300), (2, 1030))):
    """Norm and activation against torch's own, with and without a norm that was left out."""
    import torch.nn.functional as F

    from nanovllm.levers.fused_activation import silu_and_mul
    from nanovllm.levers.fused_norm import rms_norm

    for rows, size in sizes:
        randn = randoms(size, device, dtype)
        x, weight, stream = 10 * randn(rows, 2, size), 1 + 0.3 * randn(size), 10 * randn(rows, 33)
        gate_up = randn(rows, 2 * size)
        wait_for(device)
        expected = F.rms_norm(x.float(), (size,), weight.float(), 1e-6)
        torch.testing.assert_close(rms_norm(x, weight, 1e-6).float(), expected, **tolerance_of(dtype))
        gate, up = gate_up.float().chunk(2, dim=-1)
        torch.testing.assert_close(silu_and_mul(gate_up).float(), F.silu(gate) * up, **tolerance_of(dtype))
        factor = torch.rsqrt(stream.float().square().mean(dim=-1, keepdim=True) + 0.1)
        expected = F.silu(gate * factor) * (up * factor)
        torch.testing.assert_close(silu_and_mul(gate_up, stream, 0.1).float(), expected, **tolerance_of(dtype))


# Heads, KV heads, head_dim, hidden size of a stream (or none)
QKV_CASES = [(4, 2, 16, None), (3, 1, 8, 40), (5, 5, 2, None), (16, 8, 32, 100)]


def check_qkv(device, dtype, cases=QKV_CASES):
    """Split, QK-norm, rotation and store in one kernel, against Hugging Face's modules and a loop over the slots."""
    import torch.nn.functional as F
    from transformers.models.qwen3.modeling_qwen3 import apply_rotary_pos_emb

    from nanovllm.layers.rotary_embedding import get_rope
    from nanovllm.levers.fused_qkv import qk_norm_rope_store

    num_tokens, block_size, eps = 5, 4, 1e-3
    for heads, kv_heads, head_dim, hidden_size in cases:
        randn = randoms(heads, device, dtype)
        qkv = randn(num_tokens, (heads + 2 * kv_heads) * head_dim)
        weights = [1 + 0.3 * randn(head_dim) for _ in range(2)]
        stream = None if hidden_size is None else 10 * randn(num_tokens, hidden_size)
        positions = torch.tensor([3, 0, 17, 99, 4], device=device)
        slots = torch.tensor([9, 2, 11, 0, 5], device=device)
        table = get_rope(head_dim, 100, 10_000.0).cos_sin_cache.to(device)
        caches = [randn(3, block_size, kv_heads, head_dim) for _ in range(2)]
        before = [cache.clone() for cache in caches]
        wait_for(device)
        results = qk_norm_rope_store(qkv, *weights, eps, table, positions, slots, *caches, stream)

        heads_of_token = qkv.float().unflatten(1, (-1, head_dim))
        if stream is not None:
            factor = torch.rsqrt(stream.float().square().mean(dim=-1, keepdim=True) + eps)
            heads_of_token = heads_of_token * factor.unsqueeze(-1)
        q, k, v = heads_of_token.split([heads, kv_heads, kv_heads], dim=1)
        q, k = (F.rms_norm(x, (head_dim,), w.float(), eps) for x, w in zip((q, k), weights, strict=True))
        cos, sin = (x.repeat(1, 2).unsqueeze(0) for x in table[positions, 0].chunk(2, dim=-1))
        rotated = apply_rotary_pos_emb(q.transpose(0, 1).unsqueeze(0), k.transpose(0, 1).unsqueeze(0), cos, sin)
        expected = [x.squeeze(0).transpose(0, 1) for x in rotated] + [v]
        for got, want in zip(results, expected, strict=True):
            torch.testing.assert_close(got.float(), want, **tolerance_of(dtype))
        for cache, old, new in zip(caches, before, results[1:], strict=True):
            for i, slot in enumerate(slots.tolist()):
                old[slot // block_size, slot % block_size] = new[i]
            assert torch.equal(cache, old), "in their slots and nowhere else"


def check_sampler(device, dtype, vocab_size=5001):
    """The tokens of the plain sampler, whose noise is the same but for the rounding of its logarithms."""
    from nanovllm.layers.sampler import Sampler, SamplingMetadata, gumbel_noise
    from nanovllm.levers.fused_sampler import sample

    randn = randoms(4, device, dtype)
    wide = 3 * randn(8, vocab_size + 9)
    logits = wide[:, :vocab_size]  # rows that are strided, as those of a padded vocabulary
    temperatures = torch.tensor([0.0, 1.0, 0.5, 2.0, 0.0, 1.0, 1e-5, 0.8], device=device)
    seeds = torch.tensor([0, 0, 1, 2**40 + 3, 7, 2**63 - 1, 5, 6], device=device)
    positions = torch.arange(8, device=device) * 1000
    wait_for(device)
    got = sample(logits, temperatures, seeds, positions)
    expected = Sampler()(logits, SamplingMetadata(temperatures, seeds, positions))
    scores = logits.float() / temperatures.clamp(min=1e-9)[:, None] + gumbel_noise(seeds, positions, vocab_size)
    for row in range(8):
        if got[row] != expected[row]:  # then the two were as good as equal
            assert temperatures[row] > 0
            torch.testing.assert_close(scores[row, got[row]], scores[row, expected[row]], atol=1e-4, rtol=1e-5)
    assert torch.equal(got[temperatures == 0], expected[temperatures == 0])
    assert len(set(got.tolist())) > 4


# Inputs, half of the outputs, rows: with many inputs a program computes fewer outputs, with over 1024 outputs more.
LINEAR_CASES = [(300, 520, 2), (48, 7, 1), (5000, 5, 2), (20_000, 3, 1)]


def check_small_linear(device, dtype, cases=LINEAR_CASES):
    """Compare the kernel for a few tokens with the plain modules, with everything that can be in the same launch."""
    import torch.nn.functional as F

    from nanovllm.layers.activation import SiluAndMul
    from nanovllm.layers.layernorm import RMSNorm
    from nanovllm.levers.small_batch import small_linear

    tolerance = {"atol": 1e-4, "rtol": 1e-4} if dtype == torch.float32 else {"atol": 3e-2, "rtol": 3e-2}
    for size, num_outputs, rows in cases:
        randn = randoms(size, device, dtype)
        x, stream = randn(rows, size), randn(rows, 2 * num_outputs)
        norm = RMSNorm(size).to(device, dtype)
        norm.weight.data = 1 + 0.3 * randn(size)
        weight, bias = randn(2 * num_outputs, size) / size**0.5, randn(2 * num_outputs)
        normed, x_before, stream_before = norm(x), x.clone(), stream.clone()
        wait_for(device)
        output = small_linear(x, weight, bias)
        torch.testing.assert_close(output, F.linear(x, weight, bias), **tolerance)
        output = small_linear(x, weight, None, norm)
        torch.testing.assert_close(output, F.linear(normed, weight), **tolerance)
        output = small_linear(x, weight, None, norm, is_gated=True)
        torch.testing.assert_close(output, SiluAndMul()(F.linear(normed, weight)), **tolerance)
        output = small_linear(x, weight, bias, norm, is_gated=True)
        torch.testing.assert_close(output, SiluAndMul()(F.linear(normed, weight, bias)), **tolerance)
        output = small_linear(x, weight, bias, stream=stream)
        torch.testing.assert_close(output, stream + F.linear(x, weight, bias), **tolerance)
        assert torch.equal(x, x_before) and torch.equal(stream, stream_before)


def check_folded_layers(device, dtype, tolerance):
    """Decoder layers whose norms are folded into the projections, against plain ones; with biases they are fused."""
    from transformers import Qwen3Config

    from nanovllm.layers.rotary_embedding import get_rope
    from nanovllm.levers import folded_norm, fused_activation, fused_norm, fused_qkv
    from nanovllm.models.qwen3 import Qwen3DecoderLayer
    from nanovllm.utils.context import reset_context, set_context

    shape = {"hidden_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    for bias in (False, True):
        generator = torch.Generator().manual_seed(5)
        config = Qwen3Config(**shape, intermediate_size=40, attention_bias=bias)
        layer = Qwen3DecoderLayer(config, get_rope(16, 64, 10_000.0))
        for name, parameter in layer.named_parameters():
            noise = 0.3 * torch.randn(parameter.shape, generator=generator)
            parameter.data = noise + 1 if "norm" in name else noise
        layer = layer.to(device, dtype)
        stream = 10 * torch.randn(7, 48, generator=generator).to(device, dtype)  # far from what a norm makes of it
        lengths = torch.tensor([0, 3, 7], dtype=torch.int32, device=device)
        slots, positions = torch.arange(7, device=device), torch.tensor([0, 1, 2, 0, 1, 2, 3], device=device)
        caches, results = [], []
        set_context(is_prefill=True, cu_seqlens_q=lengths, cu_seqlens_k=lengths, slot_mapping=slots)
        try:
            for is_folded in (False, True):
                attention = layer.self_attn
                attention.attn.k_cache = torch.zeros(4, 2, 2, 16, dtype=dtype, device=device)
                attention.attn.v_cache = torch.zeros_like(attention.attn.k_cache)
                if is_folded:
                    for lever in (fused_norm, fused_activation, fused_qkv, *([] if bias else [folded_norm])):
                        lever.install(layer, None)
                with torch.inference_mode():
                    results.append(layer(positions, stream.clone()))
                caches.append((attention.attn.k_cache, attention.attn.v_cache))
        finally:
            reset_context()
        torch.testing.assert_close(results[1], results[0], atol=tolerance, rtol=tolerance)
        for plain, folded in zip(*caches, strict=True):
            torch.testing.assert_close(folded, plain, atol=tolerance, rtol=tolerance)


def check_overlap_belongs_to_its_thread():
    """And is what it was before when the block ends, so that a step inside of the start does not turn it off."""
    import threading

    from nanovllm.layers.kernels.overlap import launches
    from nanovllm.levers.overlapped_launch import overlapped

    seen = []

    def other():
        seen.append(launches.overlap)
        with overlapped():
            seen.append(launches.overlap)
            arrived.set()
            go_on.wait(10)
        seen.append(launches.overlap)

    arrived, go_on = threading.Event(), threading.Event()
    thread = threading.Thread(target=other)
    with overlapped():
        with overlapped():
            thread.start()
            assert arrived.wait(10)
        assert launches.overlap is True
    assert launches.overlap is False
    go_on.set()
    thread.join()
    assert seen == [False, True, False]
    with pytest.raises(KeyError), overlapped():
        raise KeyError
    assert launches.overlap is False


@needs_triton
def test_overlap_belongs_to_its_thread():
    check_overlap_belongs_to_its_thread()


@needs_triton
@pytest.mark.slow
def test_the_kernels_of_the_levers_in_the_interpreter():
    run_interpreted(
        "for dtype in DTYPES.values():\n"
        "    check_fused_kernels('cpu', dtype)\n"
        "    check_qkv('cpu', dtype)\n"
        "    check_sampler('cpu', dtype)"
    )


@needs_triton
@pytest.mark.slow
def test_small_products_and_folded_layers_in_the_interpreter():
    run_interpreted(
        "check_small_linear('cpu', torch.float32)\n"
        "check_folded_layers('cpu', torch.float32, 1e-4)\n"
        "from nanovllm.layers.kernels.overlap import overlap_options\n"
        "from nanovllm.levers.overlapped_launch import overlapped\n"
        "with overlapped():\n"
        "    assert overlap_options(torch.device('cpu')) == {'OVERLAP': False, 'launch_pdl': False}"
    )


@needs_triton
@pytest.mark.slow
def test_the_comparison_notices_a_wrong_kernel():
    run_interpreted(
        "import nanovllm.layers.kernels.store_kvcache as module\n"
        "right = module.store_kvcache_triton\n"
        "module.store_kvcache_triton = lambda k, v, kc, vc, slots: right(k, v, kc, vc, slots.flip(0))\n"
        "module.store_kvcache_triton.__name__ = 'wrong'\n"
        "with pytest.raises(AssertionError, match='wrong'):\n    check_all('cpu', torch.float32)"
    )


@pytest.mark.gpu
@needs_triton
@pytest.mark.parametrize("dtype", DTYPES)
def test_kernels_on_a_gpu(dtype):
    check_all("cuda", DTYPES[dtype])
    check_store_kvcache("cuda", DTYPES[dtype], 3000, 8, 128, 256, "packed")
    check_bad_layouts("cuda")
    check_attention("cuda", DTYPES[dtype])


@pytest.mark.gpu
@needs_triton
@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_kernels_with_and_without_overlapped_launches_on_a_gpu(dtype, overlaps):
    from contextlib import nullcontext

    from nanovllm.levers.overlapped_launch import overlapped

    with overlapped() if overlaps else nullcontext():
        check_attention("cuda", DTYPES[dtype])
        check_fused_kernels("cuda", DTYPES[dtype])
        check_qkv("cuda", DTYPES[dtype])
        check_sampler("cuda", DTYPES[dtype])
        check_small_linear("cuda", DTYPES[dtype])
        if dtype == "float32":
            check_folded_layers("cuda", torch.float32, 1e-4)


@pytest.mark.gpu
@needs_triton
@pytest.mark.parametrize("kilobytes", [64, 99, 163])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_with_the_tiles_of_smaller_gpus_on_a_gpu(monkeypatch, dtype, head_dim, kilobytes):
    from nanovllm.layers.kernels import paged_attention

    monkeypatch.setattr(paged_attention, "shared_memory", None)  # `check_attention` replaces it; put back afterwards
    check_attention("cuda", DTYPES[dtype], head_dim=head_dim, kilobytes=kilobytes)


@pytest.mark.gpu
@needs_triton
def test_slots_beyond_two_billion_elements():
    from nanovllm.layers.kernels.store_kvcache import store_kvcache_triton

    # 2^31 numbers of one cache are 4 GiB in bfloat16; an offset of 32 bits would wrap around.
    num_blocks = 2**31 // (256 * 8 * 128) + 2
    k_cache = torch.zeros(num_blocks, 256, 8, 128, dtype=torch.bfloat16, device="cuda")
    v_cache = torch.zeros_like(k_cache)
    key = torch.randn(2, 8, 128, device="cuda").bfloat16()
    slots = torch.tensor([num_blocks * 256 - 1, 5], device="cuda")
    store_kvcache_triton(key, 2 * key, k_cache, v_cache, slots)
    assert torch.equal(k_cache[-1, -1], key[0]) and torch.equal(k_cache[0, 5], key[1])
    assert torch.equal(v_cache[-1, -1], 2 * key[0]) and torch.equal(v_cache[0, 5], 2 * key[1])
    assert k_cache.count_nonzero() == key.count_nonzero()
