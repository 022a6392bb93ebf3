"""The engine computes what Hugging Face's Qwen3 computes, on random models and prompts."""

import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nanovllm import LLM, SamplingParams

from .conftest import a_tenth
from .reference import (
    LOGITS_TOLERANCE,
    Reference,
    heavy,
    make_smooth_model,
    record_logits,
    write_new_spelling,
    write_old_spelling,
)

MAX_TOKENS = 6


@st.composite
def model_options(draw):
    """Qwen3 configurations: all shapes are small, and few of them fit together by chance."""
    num_kv_heads = draw(st.integers(1, 3))
    return {
        "num_key_value_heads": num_kv_heads,
        "num_attention_heads": num_kv_heads * draw(st.integers(1, 8)),
        "head_dim": draw(st.sampled_from([4, 8, 10, 16, 32])),
        "hidden_size": draw(st.sampled_from([12, 16, 33, 48])),
        "intermediate_size": draw(st.sampled_from([8, 21, 64])),
        "num_hidden_layers": draw(st.integers(1, 3)),
        "vocab_size": draw(st.integers(40, 130)),
        "tie_word_embeddings": draw(st.booleans()),
        "attention_bias": draw(st.booleans()),
        "rope_theta": draw(st.sampled_from([7.5, 100.0, 10_000.0, 1_000_000.0, 5e6])),
        "rms_norm_eps": draw(st.sampled_from([1e-6, 1e-5, 1e-2])),
        "max_position_embeddings": 128,
        "eos_token_id": None,
    }


@st.composite
def prompt_lists(draw):
    lengths = draw(st.lists(st.integers(1, 40), min_size=1, max_size=3))
    return [draw(st.lists(st.integers(0, 39), min_size=length, max_size=length)) for length in lengths]


def check_parity(options, prompts, seed, spelling):
    params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, ignore_eos=True)
    with tempfile.TemporaryDirectory() as directory:
        path = make_smooth_model(Path(directory), seed=seed, **options)
        reference = Reference(path)
        rewrite = {"old": write_old_spelling, "new": write_new_spelling}[spelling]
        rewrite(path, options["rope_theta"])
        with (
            LLM(path, kvcache_block_size=8, num_kvcache_blocks=32, max_num_batched_tokens=32, device="cpu") as llm,
            pytest.MonkeyPatch.context() as monkeypatch,
        ):
            recorded = record_logits(llm, monkeypatch)
            outputs = llm.generate(prompts, params, use_tqdm=False)
    for prompt, output, rows in zip(prompts, outputs, recorded.values(), strict=True):
        token_ids = output["token_ids"]
        assert len(token_ids) == len(rows) == MAX_TOKENS
        expected = reference.logits(prompt + token_ids)[len(prompt) - 1 : -1]
        difference = (torch.stack(rows) - expected).abs().amax(dim=-1)
        assert difference.max() <= LOGITS_TOLERANCE, f"logits differ by {difference.tolist()} (a generated token each)"
        reference.assert_greedy(prompt, token_ids)


parity_draws = given(
    options=model_options(),
    prompts=prompt_lists(),
    seed=st.integers(0, 1000),
    spelling=st.sampled_from(["old", "new"]),
)


@heavy(max_examples=6)
@parity_draws
def test_logits_and_greedy_tokens_are_those_of_hugging_face(options, prompts, seed, spelling):
    check_parity(options, prompts, seed, spelling)


@pytest.mark.slow
@pytest.mark.timeout(300)
@heavy(max_examples=a_tenth(250))
@parity_draws
def test_logits_and_greedy_tokens_are_those_of_hugging_face_many_draws(options, prompts, seed, spelling):
    check_parity(options, prompts, seed, spelling)


@pytest.mark.parametrize("ratio", range(1, 9))
def test_every_ratio_of_query_to_key_heads(ratio):
    options = {
        "num_key_value_heads": 2,
        "num_attention_heads": 2 * ratio,
        "head_dim": 8,
        "tie_word_embeddings": bool(ratio % 2),
        "attention_bias": ratio % 3 == 0,
        "rope_theta": 10.0**ratio,
        "eos_token_id": None,
    }
    check_parity(options, [[5, 9, 2, 6], [1]], seed=ratio, spelling="old" if ratio % 4 < 2 else "new")


@pytest.mark.parametrize("field", ["rope_theta", "rms_norm_eps", "attention_bias", "tie_word_embeddings", "head_dim"])
def test_the_comparison_notices_each_option(tmp_path, field):
    # A parity test that passes whatever the option says would prove nothing about it.
    base = {"rope_theta": 10_000.0, "rms_norm_eps": 1e-6, "attention_bias": False, "head_dim": 16}
    base |= {"tie_word_embeddings": True, "eos_token_id": None}
    other = {"rope_theta": 20_000.0, "rms_norm_eps": 1e-4, "attention_bias": True, "head_dim": 8}
    other |= {"tie_word_embeddings": False}
    prompt = list(range(20))
    rows = [
        Reference(make_smooth_model(tmp_path / name, **options)).logits(prompt)
        for name, options in (("base", base), ("changed", base | {field: other[field]}))
    ]
    assert (rows[0] - rows[1]).abs().max() > 10 * LOGITS_TOLERANCE
