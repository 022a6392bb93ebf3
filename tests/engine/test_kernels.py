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


def run_interpreted(code):
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    lines = f"import torch\nfrom tests.engine.test_kernels import *\n{code}\nprint('done')"
    command = [sys.executable, "-c", lines]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100)
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


def check_attention(device, dtype, cases=ATTENTION_CASES):
    """Compare the Triton backend with dense attention."""
    from nanovllm.layers.attention import get_attention_backend
    from tests.engine.test_attention import Batch

    backend = get_attention_backend("triton")
    for seed, (lengths, cached, block_size, heads, kv_heads) in enumerate(cases):
        options = {"heads": heads, "kv_heads": kv_heads, "head_dim": 16, "seed": seed, "device": device, "dtype": dtype}
        batch = Batch(lengths, cached, block_size, **options)
        batch.assert_close(batch.prefill(backend))
        batch = Batch(lengths, [length - 1 for length in lengths], block_size, **options)
        batch.assert_close(batch.decode(backend))


@needs_interpreted_loops
def test_attention_in_the_interpreter():
    # The interpreter computes bfloat16 arithmetic wrongly, so that this dtype shows what is not cast first.
    run_interpreted("check_attention('cpu', torch.bfloat16, ATTENTION_CASES[2:3])")


@needs_interpreted_loops
@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_in_the_interpreter_all_cases(dtype):
    run_interpreted(f"check_attention('cpu', DTYPES[{dtype!r}])")


def check_engine(directory):
    """Tokens of an engine that computes with all kernels, those of attention excepted, against the plain modules."""
    from nanovllm import LLM, SamplingParams
    from nanovllm.config import KERNELS, Config
    from tests.engine.conftest import make_tiny_model

    path = make_tiny_model(directory, seed=3)
    prompts = [[5, 6, 7], [9] * 20, [3, 1, 4, 1, 5, 9, 2, 6], [8]]
    params = [
        SamplingParams(temperature=temperature, seed=seed, max_tokens=6, ignore_eos=True)
        for seed, temperature in enumerate((0.0, 0.8, 0.0, 1.0))
    ]
    options = {"device": "cpu", "kvcache_block_size": 8, "num_kvcache_blocks": 64, "max_num_batched_tokens": 16}
    results = []
    for kernels in ((), KERNELS):
        Config.is_enabled = lambda self, name, kernels=kernels: name in kernels
        with LLM(path, **options) as llm:
            assert llm.model_runner.model.model.layers[0].is_folded is bool(kernels)
            for _ in range(2):  # the second time with cached prefixes
                results.append([output["token_ids"] for output in llm.generate(prompts, params, use_tqdm=False)])
    assert all(result == results[0] for result in results), results


@needs_triton
def test_an_engine_with_all_kernels_in_the_interpreter(tmp_path):
    run_interpreted(f"check_engine({str(tmp_path)!r})")


# Inputs, outputs, rows: with many inputs, a program computes fewer outputs.
LINEAR_CASES = [(300, 1030, 2), (48, 7, 1), (5000, 5, 2), (20_000, 3, 1)]


def check_small_linear(device, dtype, cases=LINEAR_CASES):
    """Compare the kernel for a few tokens with the plain modules, with everything that can be in the same launch."""
    from nanovllm.layers.activation import SiluAndMul
    from nanovllm.layers.kernels.small_batch import small_linear
    from nanovllm.layers.layernorm import RMSNorm

    tolerance = {"atol": 1e-4, "rtol": 1e-4} if dtype == torch.float32 else {"atol": 3e-2, "rtol": 3e-2}
    for size, num_outputs, rows in cases:
        generator = torch.Generator().manual_seed(size)

        def randn(*shape, generator=generator):
            return torch.randn(*shape, generator=generator).to(device, dtype)

        x, residual = randn(rows, size), randn(rows, size)
        norm = RMSNorm(size).to(device, dtype)
        norm.weight.data = 1 + 0.3 * randn(size)
        weight, bias = randn(2 * num_outputs, size) / size**0.5, randn(2 * num_outputs)
        normed, total = norm(x, residual)
        if device == "cuda":
            torch.cuda.synchronize()  # an overlapping kernel reads its weights before the kernels before have ended
        output, same = small_linear(x, weight, bias)
        torch.testing.assert_close(output, torch.nn.functional.linear(x, weight, bias), **tolerance)
        assert same is x
        output, kept = small_linear(x, weight, None, norm, residual)
        torch.testing.assert_close(output, torch.nn.functional.linear(normed, weight), **tolerance)
        assert torch.equal(kept, total)
        output, kept = small_linear(x, weight, None, norm, residual, is_gated=True)
        expected = SiluAndMul()(torch.nn.functional.linear(normed, weight))
        torch.testing.assert_close(output, expected, **tolerance)
        assert torch.equal(kept, total)


def check_folded_layers(device, dtype, tolerance):
    """Decoder layers whose norms are folded into the projections, against plain ones, with and without biases."""
    from transformers import Qwen3Config

    from nanovllm.layers.rotary_embedding import get_rope
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
                    layer.fold_norms()
                    attention.is_fused = True
                with torch.inference_mode():
                    output, residual = layer(positions, stream.clone(), None)
                results.append(output if residual is None else output + residual)
                caches.append((attention.attn.k_cache, attention.attn.v_cache))
        finally:
            reset_context()
        assert layer.is_folded or bias, "what this compares"
        torch.testing.assert_close(results[1], results[0], atol=tolerance, rtol=tolerance)
        for plain, folded in zip(*caches, strict=True):
            torch.testing.assert_close(folded, plain, atol=tolerance, rtol=tolerance)


@needs_triton
def test_small_products_and_folded_layers_in_the_interpreter():
    run_interpreted(
        "check_small_linear('cpu', torch.float32)\n"
        "check_folded_layers('cpu', torch.float32, 1e-4)\n"
        "from nanovllm.layers.kernels.overlap import overlap_options\n"
        "from nanovllm.utils.context import set_overlapped_launches\n"
        "set_overlapped_launches(True)\n"
        "assert overlap_options(torch.device('cpu')) == {'OVERLAP': False, 'launch_pdl': False}"
    )


@needs_triton
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
    from nanovllm.utils.context import set_overlapped_launches

    set_overlapped_launches(overlaps)
    try:
        check_attention("cuda", DTYPES[dtype])
        check_small_linear("cuda", DTYPES[dtype])
        if dtype == "float32":
            check_folded_layers("cuda", torch.float32, 1e-4)
    finally:
        set_overlapped_launches(False)


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
