"""Weights of one byte: what is lost is bounded, what is freed is counted, and text stays text."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from nanovllm import LLM, SamplingParams, levers
from nanovllm.config import Config
from nanovllm.engine import kv_cache
from nanovllm.engine.model_runner import ModelRunner
from nanovllm.layers.linear import LinearBase
from nanovllm.levers.weight_int8 import Int8Linear, install, quantize

from .conftest import device_of_ranks, make_tiny_model
from .reference import record_logits
from .test_kernels import needs_interpreted_loops, needs_triton, run_interpreted

READING = {name for name, lever in levers.LEVERS.items() if lever.reads_weights}
OPTIONS = {"device": "cpu", "kvcache_block_size": 16, "num_kvcache_blocks": 64}
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
PROMPTS = ["Once upon a time", "The little cat", "One day, Tom and his dog"]


@given(
    rows=st.integers(1, 5),
    columns=st.integers(1, 40),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    size=st.sampled_from([1e-7, 1e-3, 1.0, 100.0]),
    seed=st.integers(0, 100),
)
@settings(max_examples=40, deadline=None)
def test_no_weight_is_off_by_more_than_half_a_step(rows, columns, dtype, size, seed):
    generator = torch.Generator().manual_seed(seed)
    weight = (size * torch.randn(rows, columns, generator=generator)).to(dtype)
    weight[seed % rows] *= 0.01  # each row has its own scale
    before = weight.clone()
    numbers, scale = quantize(weight)
    assert torch.equal(weight, before)
    assert numbers.dtype == torch.int8 and numbers.shape == weight.shape
    assert scale.dtype == dtype and scale.shape == (rows, 1) and (scale > 0).all()
    assert numbers.int().abs().max() <= 127
    error = (numbers.double() * scale.double() - weight.double()).abs()
    assert (error <= 0.501 * scale.double()).all()


def test_rows_of_zeros_and_powers_of_two_are_exact():
    weight = torch.tensor([[0.0, 0.0, 0.0], [127.0, -64.0, 1.0], [-0.5, 0.0, 0.25]])
    numbers, scale = quantize(weight)
    torch.testing.assert_close(numbers * scale, weight, atol=2e-3, rtol=0)
    assert torch.equal((numbers * scale)[:2], weight[:2])


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_error_of_a_product_is_bounded(dtype, bias):
    torch.manual_seed(3)
    layer = LinearBase.__new__(LinearBase)
    torch.nn.Module.__init__(layer)
    layer.weight = torch.nn.Parameter(torch.randn(20, 300).to(dtype) * torch.logspace(-3, 3, 20).to(dtype)[:, None])
    layer.bias = torch.nn.Parameter(torch.randn(20).to(dtype)) if bias else None
    x = torch.randn(7, 300).to(dtype)
    exact = F.linear(x.double(), layer.weight.double(), None if layer.bias is None else layer.bias.double())
    size = F.linear(x.double().abs(), layer.weight.double().abs())
    with torch.inference_mode():
        install(layer, None)
        error = (layer(x).double() - exact).abs()
    assert type(layer) is Int8Linear and layer.weight.dtype == torch.int8
    half_a_step = 0.501 * layer.weight_scale.double().T * x.double().abs().sum(1, keepdim=True)
    rounding = 2 * torch.finfo(dtype).eps * (size + exact.abs() + 1)
    assert (error <= half_a_step + rounding).all()
    assert error.max() > 0


# In an engine.


@pytest.fixture(scope="module")
def answers():
    """Of the bundled model, without and with it: texts, logits along the first's texts, bytes of its parameters."""
    found, prefixes = {}, []
    for quantization in (None, "int8"):
        with LLM("qwen3-tiny", quantization=quantization, **OPTIONS) as llm, pytest.MonkeyPatch.context() as patch:
            model = llm.llm_engine.model_runner.model
            outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
            for prompt, output in zip(PROMPTS if quantization is None else (), outputs, strict=False):
                token_ids = llm.tokenizer.encode(prompt) + output["token_ids"]
                prefixes += [token_ids[:i] for i in range(3, len(token_ids), 4)]
            recorded = record_logits(llm, patch)
            llm.generate(prefixes, SamplingParams(temperature=0.0, max_tokens=1), use_tqdm=False)
            logits = torch.stack([rows[0] for rows in recorded.values()])
            sizes = {name: (p.dtype, p.numel(), p.nbytes) for name, p in model.named_parameters()}
            layers = {name for name, module in model.named_modules() if isinstance(module, LinearBase)}
            found[quantization] = [output["text"] for output in outputs], logits, sizes, layers
    return found


def test_bytes_of_the_weights(answers):
    _, _, floats, layers = answers[None]
    _, _, quantized, _ = answers["int8"]
    weights = {f"{name}.weight" for name in layers}
    assert len(weights) == 4 * sum(name.endswith("mlp.down_proj.weight") for name in weights)
    assert {name for name, (dtype, _, _) in quantized.items() if dtype == torch.int8} == weights
    for name in weights:
        assert quantized[name][1] == floats[name][1] and quantized[name][2] == floats[name][2] // 4
    rest = quantized.keys() - weights
    assert {name for name in rest if name not in floats} == {f"{name}.weight_scale" for name in layers}
    assert all(quantized[name] == floats[name] for name in floats.keys() - weights)
    total = {name: sum(nbytes for *_, nbytes in sizes.values()) for name, sizes in (("f", floats), ("q", quantized))}
    print(f"bytes of parameters: {total['f']:,} and {total['q']:,}")
    assert total["q"] < 0.6 * total["f"]  # the embedding, which is the head, too, stays


def test_logits_and_text_of_the_bundled_model(answers):
    texts, logits, *_ = answers[None]
    quantized_texts, quantized, *_ = answers["int8"]
    error = (quantized - logits).abs()
    agreeing = (quantized.argmax(dim=1) == logits.argmax(dim=1)).float().mean()
    print(f"logits from {logits.min():.1f} to {logits.max():.1f}, largest error {error.max():.2f}, best {agreeing:.0%}")
    for pair in zip(texts, quantized_texts, strict=True):
        print(*map(repr, pair), sep="\n")
    assert 0 < error.max() < 1.0 and error.mean() < 0.1 and agreeing >= 0.9
    # What the plain model says is nearly as likely for the quantized one.
    gap = logits.log_softmax(1).max(1).values - quantized.log_softmax(1).gather(1, logits.argmax(1, True))[:, 0]
    assert gap.abs().mean() < 0.05
    assert sum(text[:20] == other[:20] for text, other in zip(texts, quantized_texts, strict=True)) >= 2


def test_what_it_frees_becomes_blocks(monkeypatch):
    """The pool is sized when the floats are gone."""
    machine, weights, blocks = 60_000_000, {}, {}
    for quantization in (None, "int8"):

        def warmup(runner, quantization=quantization):
            weights[quantization] = sum(p.nbytes for p in runner.model.parameters())
            return 0

        monkeypatch.setattr(ModelRunner, "warmup_model", warmup)
        monkeypatch.setattr(kv_cache, "available_memory", lambda key=quantization: machine - weights[key])
        with LLM("qwen3-tiny", device="cpu", kvcache_block_size=16, quantization=quantization) as llm:
            blocks[quantization] = llm.config.num_kvcache_blocks
            block_bytes = llm.llm_engine.model_runner.kv_cache.nbytes // blocks[quantization]
    freed, gained = weights[None] - weights["int8"], blocks["int8"] - blocks[None]
    print(f"{freed:,} bytes freed, {gained} blocks of {block_bytes:,} bytes gained, to the {blocks[None]} there are")
    assert abs(gained * block_bytes - kv_cache.CPU_POOL_SHARE * freed) <= block_bytes


def test_a_llama_with_biases(tmp_path):
    path = make_tiny_model(tmp_path, family="Llama", attention_bias=True, mlp_bias=True)
    with LLM(path, quantization="int8", **OPTIONS) as llm:
        model = llm.llm_engine.model_runner.model
        assert all(isinstance(m, Int8Linear) for m in model.modules() if isinstance(m, LinearBase))
        assert len(llm.generate([3, 4, 5], GREEDY, use_tqdm=False)[0]["token_ids"]) == 24


# Beside other options.


@pytest.mark.parametrize("value", ["int4", "", 8, True, ["int8"]])
def test_others_do_not_exist(tmp_path, value):
    with pytest.raises(ValueError, match=r"quantization must be one of None, 'int8', got") as error:
        LLM(make_tiny_model(tmp_path), quantization=value, **OPTIONS)
    assert repr(value) in str(error.value)


def test_it_is_off_unless_asked_for(tmp_path):
    path = make_tiny_model(tmp_path)
    for disabled in ((), "all"):
        for quantization in (None, "int8"):
            options = OPTIONS | {"quantization": quantization, "disabled_optimizations": disabled}
            with LLM(path, **options) as llm:
                modules = list(llm.llm_engine.model_runner.model.modules())
                assert any(isinstance(module, Int8Linear) for module in modules) is (quantization == "int8")
    with pytest.raises(ValueError, match="disabled_optimizations must be names of"):
        LLM(path, disabled_optimizations=["weight_int8"], **OPTIONS)


@needs_triton
@pytest.mark.lever
def test_levers_that_read_weights_are_off(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    assert sorted(READING) == ["folded_norm", "fused_norm", "packed_weights", "small_batch"]
    config = Config(make_tiny_model(tmp_path), device="cpu", quantization="int8")
    assert not levers.is_enabled(config, "packed_weights")
    config.device, config.attention_backend = "cuda", "triton"
    assert {name for name in levers.LEVERS if levers.is_enabled(config, name)} == set(levers.LEVERS) - READING


def check_levers(directory):
    """The other levers, beside it, against the plain engine with it."""
    from . import test_levers

    test_levers.OPTIONS["quantization"] = "int8"
    test_levers.check_combinations(directory, [set(levers.LEVERS) - READING], "triton")


@needs_interpreted_loops
@pytest.mark.lever
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_other_levers_change_no_token(tmp_path):
    run_interpreted(f"from tests.engine.test_weight_int8 import *\ncheck_levers({str(tmp_path)!r})", timeout=580)


@pytest.mark.slow
def test_two_ranks():
    params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=5)
    device = device_of_ranks(2)
    found = []
    for options in ({}, {"quantization": "int8", "tensor_parallel_size": 2}):
        with LLM("qwen3-tiny", **OPTIONS | options | {"device": device, "dtype": "float32"}) as llm:
            outputs = llm.generate(PROMPTS, params, use_tqdm=False)
        found.append([output["logprobs"][0] for output in outputs])
    pairs = [(p[i], q[i]) for p, q in zip(*found, strict=True) for i in p.keys() & q.keys()]
    largest = max(abs(plain - quantized) for plain, quantized in pairs)
    print(f"{len(pairs)} log-probabilities, which differ by up to {largest:.3f}")
    assert len(pairs) >= 9 and 0 < largest < 0.6
