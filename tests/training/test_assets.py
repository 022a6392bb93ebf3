"""The bundled model's files: forms that old and new transformers read, sizes, tokenizer, card and its numbers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from safetensors import safe_open
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoTokenizer

from training import card, dataset, tasks
from training.tokenizer import CHAT_TEMPLATE
from training.train import Architecture

MODEL = Path(__file__).parents[2] / "nanovllm" / "assets" / "qwen3-tiny"


def read(name: str) -> dict:
    return json.loads((MODEL / name).read_text())


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(MODEL)


def test_config_has_the_form_of_transformers_4_51():
    config = read("config.json")
    assert config["architectures"] == ["Qwen3ForCausalLM"] and config["torch_dtype"] == "bfloat16"
    assert not {"rope_parameters", "dtype", "layer_types"} & set(config)
    for name, value in vars(Architecture()).items():
        assert config[name] == value
    loaded = AutoConfig.from_pretrained(MODEL)
    theta = getattr(loaded, "rope_theta", None) or loaded.rope_parameters["rope_theta"]
    assert theta == config["rope_theta"]


def test_weights_fit_and_match_the_config():
    path, arch = MODEL / "model.safetensors", Architecture()
    assert path.stat().st_size <= 16_000_000
    with safe_open(path, "pt") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        assert {file.get_slice(name).get_dtype() for name in shapes} == {"BF16"}
    assert shapes["model.embed_tokens.weight"] == (arch.vocab_size, arch.hidden_size)
    assert shapes["model.layers.7.self_attn.k_proj.weight"] == (
        arch.num_key_value_heads * arch.head_dim,
        arch.hidden_size,
    )
    assert "lm_head.weight" not in shapes and len(shapes) == 2 + 11 * arch.num_hidden_layers
    total = sum(rows * (columns[0] if columns else 1) for rows, *columns in shapes.values())
    assert total == read("training.json")["parameters"]


def test_end_tokens(tokenizer):
    ends = read("generation_config.json")["eos_token_id"]
    assert ends == tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    assert tokenizer.eos_token == "<|im_end|>" and tokenizer.pad_token == "<|endoftext|>"


@pytest.mark.parametrize(
    "text",
    [
        "Once upon a time, Zoë had 3 kites.\n\n  Two were red.",
        "12345 + 678",
        "naïve 北京 \U0001f600\ttab",
        "<|im_start|>user\nhi<|im_end|>\n",
        "don't I'LL  spaces ",
    ],
)
def test_round_trip(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_digits_are_single_tokens(tokenizer):
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("4071")) == ["4", "0", "7", "1"]


def test_chat_template_is_what_training_used(tokenizer):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "Hello."},
    ]
    assert tokenizer.chat_template == CHAT_TEMPLATE
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    assert text == dataset.render(messages)
    prompt = tokenizer.apply_chat_template(
        messages[:2], tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    assert text.startswith(prompt) and prompt.endswith("<|im_start|>assistant\n")


def test_roles_are_single_tokens_as_the_loss_mask_needs():
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    for role in ("user", "assistant", "system"):
        ids = tokenizer.encode(f"<|im_start|>{role}\nx").ids
        assert ids[1] == tokenizer.token_to_id(role) and len(ids) == 4


def test_tokenizer_class_is_known_to_old_and_new_transformers():
    assert read("tokenizer_config.json")["tokenizer_class"] == "PreTrainedTokenizerFast"


def test_card_is_made_of_the_measured_numbers(tmp_path):
    copy = tmp_path / "qwen3-tiny"
    copy.mkdir()
    for name in ("training.json", "results.json", "model.safetensors"):
        (copy / name).symlink_to(MODEL / name)
    card.write_card(copy)
    assert (copy / "MODEL_CARD.md").read_text() == (MODEL / "MODEL_CARD.md").read_text()


def test_results_meet_the_bars_and_add_up():
    results = read("results.json")
    for prompt in tasks.EXACT_PROMPTS:
        result = results["prompts"][prompt]
        assert result["greedy right"] and result["seeds"] >= 20 and result["right"] >= 0.95 * result["seeds"]
    primes = results["prompts"]["list all prime numbers within 100"]["greedy"]
    assert [int(n) for n in re.findall(r"\d+", primes)][1:] == tasks.primes_below(100)
    for task, result in results["tasks"].items():
        assert result["accuracy"] == round(result["correct"] / result["examples"], 4) >= 0.95, task
        assert result["examples"] >= 50
    assert all(
        all(s[key] for key in ("name throughout", "thing throughout")) for s in results["stories"]["samples"][:20]
    )
    assert results["memorization"]["repeated"] <= results["memorization"]["generator repeated"]
