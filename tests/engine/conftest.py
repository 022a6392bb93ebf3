"""Small random models on disk, made by Hugging Face's own code, for all engine tests."""

import importlib
import inspect
import json
import os
from pathlib import Path

import pytest
import torch

from nanovllm import config as engine_config

EOS = 0  # token id that ends a generation of a tiny model
alone_on_the_gpu = pytest.mark.skipif(
    int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1,
    reason="measures the memory of the whole GPU, which other processes use: run it without -n",
)

TOKENIZER_TEXT = [
    "Once upon a time there was a little cat who liked to play in the garden with the other cats.",
    "The quick brown fox jumps over the lazy dog, again and again and again.",
    "Zażółć gęślą jaźń. Größe, façade, naïve, Ελληνικά, русский, 日本語, 漢字, 한국어.",
    "Hands and faces: \U0001f44b\U0001f3fd \U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467.",
    "def add(a, b):\n    return a + b\n\nprint(add(1, 2))  # prints 3\n",
]


@pytest.fixture(scope="session", autouse=True)
def libraries_are_imported():
    """Those that make_tiny_model needs: before they are frozen for a module, not in its first test."""
    importlib.import_module("transformers.models.qwen3.modeling_qwen3")


def make_tiny_model(path, seed=0, with_tokenizer=False, dtype=torch.float32, family="Qwen3", **config):
    """Write a Hugging Face model with random weights to the directory `path`, and return it as a Path.

    The weights are spread so that the next token depends on the whole context and the best logit stands
    clear of the second: greedy tokens are then the same in every correct implementation. `config` goes to
    `Qwen3Config`, or that of another `family`.
    """
    import transformers
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    options = {
        "vocab_size": 320,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "eos_token_id": EOS,
        "bos_token_id": None,
        "pad_token_id": None,
    }
    hf_config = getattr(transformers, f"{family}Config")(**(options | config))
    model = getattr(transformers, f"{family}ForCausalLM")(hf_config).eval()
    randomize_weights(model, seed)
    path = Path(path)
    model.to(dtype).save_pretrained(path)
    if with_tokenizer:
        make_tiny_tokenizer(path, hf_config.vocab_size)
    return path


@torch.no_grad()
def randomize_weights(model, seed):
    """Weights with which layers matter: by default they are so small that a model repeats its last token."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            parameter.copy_(1.5 + 0.3 * noise)  # sharp attention: single tokens of the context matter
        elif "norm" in name:
            parameter.copy_(1.0 + 0.3 * noise)
        elif name.endswith("bias"):
            parameter.copy_(0.3 * noise)
        elif name.startswith(("model.embed_tokens", "lm_head")):
            parameter.copy_(noise)
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            parameter.copy_(8.0 * noise / parameter.shape[1] ** 0.5)
        else:
            parameter.copy_(noise / parameter.shape[1] ** 0.5)


def make_tiny_tokenizer(path, vocab_size=320):
    """Train and save a byte-level BPE tokenizer: any text can be encoded, a character may take several tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TOKENIZER_TEXT, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")
    fast.chat_template = (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    fast.save_pretrained(path)
    # The class name that both transformers 4 and 5 know.
    config_path = Path(path) / "tokenizer_config.json"
    tokenizer_config = json.loads(config_path.read_text(encoding="utf-8"))
    tokenizer_config["tokenizer_class"] = "PreTrainedTokenizerFast"
    config_path.write_text(json.dumps(tokenizer_config), encoding="utf-8")
    return fast


def a_tenth(number):
    """How long a search in a slow test goes on: all of `number` with `--thorough`, else a tenth of it."""
    return number if os.environ.get("NANOVLLM_THOROUGH_TESTS") else -(-number // 10)


def in_turn(values, turn, turns):
    """A test in several ways: each takes its share of the values, and together they take all. Or all: `--thorough`."""
    return values if os.environ.get("NANOVLLM_THOROUGH_TESTS") else values[turn::turns]


def in_two_sizes(name, quick, slow, timeout=300):
    """A test in the quick suite, and, where a slow one would find more, in that one, too."""
    marks = [pytest.mark.slow, pytest.mark.timeout(timeout)]
    values = slow if isinstance(slow, tuple) else (slow,)
    return pytest.mark.parametrize(name, [quick, *([pytest.param(*values, marks=marks)] if slow > quick else [])])


def all_levers_are_off():
    """Whether the tests run with `--disabled-optimizations all`."""
    return inspect.signature(engine_config.Config).parameters["disabled_optimizations"].default == "all"


def device_of_ranks(count):
    """Where `count` ranks can run: on GPUs if the tests do and there is one for each, else on the CPU."""
    device = engine_config.resolve_device("auto")
    return "cpu" if device == "cuda" and torch.cuda.device_count() < count else device


def load_hf_model(path, dtype=torch.float32):
    """The same directory as Hugging Face runs it."""
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    return AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()


@torch.inference_mode()
def hf_greedy(model, prompt, max_tokens, eos=()):
    """Greedy tokens, computed without any cache: the whole sequence is run again for each token."""
    token_ids = list(prompt)
    device = next(model.parameters()).device
    for _ in range(max_tokens):
        logits = model(torch.tensor([token_ids], device=device), use_cache=False).logits[0, -1]
        token_ids.append(int(logits.argmax()))
        if token_ids[-1] in eos:
            break
    return token_ids[len(prompt) :]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """Directory of a tiny model without a tokenizer."""
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="session")
def tiny_text_model(tmp_path_factory):
    """Directory of a tiny model with a tokenizer."""
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "text-model", with_tokenizer=True)
