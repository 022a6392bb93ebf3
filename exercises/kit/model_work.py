"""The work of chapter 15: what stands in the bundled model's residual stream after each layer, and who put it there.

Nothing of the model changes for that: hooks of torch note what its parts return while it reads.
"""

import dataclasses
import importlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from nanovllm import LLM
from nanovllm.model_files import load_hf_config, resolve_model
from nanovllm.models.qwen3 import Qwen3ForCausalLM
from nanovllm.utils.loader import resolve_packed

from . import manifest
from .assemble import Without
from .manifest import BUNDLED_MODEL

OPTIONS: dict[str, Any] = {"device": "cpu", "disabled_optimizations": "all", "kvcache_block_size": 16}
OPTIONS |= {"num_kvcache_blocks": 64, "max_model_len": 512, "enable_prefix_caching": False}
# The open exercise: after so many layers the stream is read; how many of the tokens are those of the whole model with
# the plain lens, and how many have to be.
EARLY, PLAIN, BAR = 6, 0.455, 0.50
STORIES = Path(__file__).parent / "long_text.json"  # what the works of several chapters read

# From config.json of the models Qwen/Qwen3-0.6B to Qwen/Qwen3-32B on Hugging Face, and of ours: hidden size, layers,
# query heads, KV heads, size of a head, size of the MLP, vocabulary, and whether embedding and head are one.
FAMILY = {
    "qwen3-tiny": (256, 8, 4, 2, 64, 896, 2_048, True),
    "Qwen3-0.6B": (1024, 28, 16, 8, 128, 3072, 151_936, True),
    "Qwen3-1.7B": (2048, 28, 16, 8, 128, 6144, 151_936, True),
    "Qwen3-4B": (2560, 36, 32, 8, 128, 9728, 151_936, True),
    "Qwen3-8B": (4096, 36, 32, 8, 128, 12_288, 151_936, False),
    "Qwen3-14B": (5120, 40, 40, 8, 128, 17_408, 151_936, False),
    "Qwen3-32B": (5120, 64, 64, 8, 128, 25_600, 151_936, False),
}


def config_of(name: str, **changes: Any) -> Any:
    """The sizes of a model of the family, as its config has them."""
    hidden, layers, heads, kv_heads, head_dim, middle, vocab, is_tied = FAMILY[name]
    fields = {
        "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": head_dim, "intermediate_size": middle, "vocab_size": vocab,
        "tie_word_embeddings": is_tied, "attention_bias": False, "hidden_act": "silu", "rms_norm_eps": 1e-6,
        "rope_theta": 1e6, "max_position_embeddings": 8,
    }  # fmt: skip
    return SimpleNamespace(**fields | changes)


def num_parameters(config: Any) -> dict[str, int]:
    """Parameters of a model by the parts they are in, counted in the engine's own modules, without their memory."""
    with torch.device("meta"):
        params = dict(Qwen3ForCausalLM(config).named_parameters())
    counts = dict.fromkeys(("embedding and head", "attention", "MLP", "norms"), 0)
    for name, param in params.items():
        part = "embedding and head" if "embed_tokens" in name or "lm_head" in name else "norms"
        part = {"o_proj": "attention", "qkv_proj": "attention"}.get(name.split(".")[-2], part)
        counts["MLP" if ".mlp." in name else part] += param.numel()
    return counts


def kv_bytes(config: Any, kv_heads: int | None = None) -> int:
    """Bytes of keys and values of a token in bfloat16, also with another number of KV heads."""
    heads = kv_heads or config.num_key_value_heads
    return 2 * 2 * config.num_hidden_layers * heads * config.head_dim


def names_of_tensors() -> list[tuple[str, list[str], str]]:
    """The parameters of the bundled model: name, the checkpoint's tensors in it, in order, and shape; layers as one."""
    from safetensors import safe_open

    order = list(Qwen3ForCausalLM.packed_modules_mapping)

    def place(name: str) -> int:
        """Where a checkpoint's tensor stands in a packed one."""
        part = name.split(".")[-2]
        return order.index(part) if part in order else 0

    found: dict[str, list[str]] = {}
    with safe_open(BUNDLED_MODEL / "model.safetensors", framework="pt") as file:
        for name in file.keys():  # noqa: SIM118
            target, _ = resolve_packed(name, Qwen3ForCausalLM.packed_modules_mapping)
            if ".layers." not in name or ".layers.0." in name:
                found.setdefault(target, []).append(name.replace(".layers.0.", ".layers.N."))
    with torch.device("meta"):
        params = dict(Qwen3ForCausalLM(config_of("qwen3-tiny")).named_parameters())
    rows = []
    for name, param in params.items():
        if name in found:
            shape = " x ".join(map(str, param.shape))
            parts = sorted(found[name], key=place)
            rows.append((name.replace(".layers.0.", ".layers.N."), parts, shape))
    return rows


def chapters() -> list[str]:
    """The chapters of the model's layers, as far as they have exercises."""
    there = {exercise.chapter for exercise in manifest.load().values()}
    return [chapter for chapter in ("ch09", "ch10", "ch11", "ch12", "ch13", "ch15") if chapter in there]


def loss_of(engine: Any) -> float:
    """How badly an engine's model guesses six stories."""
    with engine.LLM("qwen3-tiny", **OPTIONS) as llm:
        return loss(llm, stories(0, 6, llm))


def model_of(llm: Any) -> Any:
    """The modules of an engine's model."""
    return llm.llm_engine.model_runner.model


@contextmanager
def one_step(llm: Any, lengths: Sequence[int]) -> Iterator[None]:
    """A prefill step of texts of these lengths, without a cache, for whoever calls the model by hand."""
    context = importlib.import_module(f"{type(model_of(llm)).__module__.split('.')[0]}.utils.context")
    ends = torch.tensor([0, *lengths]).cumsum(0).int()
    context.set_context(is_prefill=True, cu_seqlens_q=ends, cu_seqlens_k=ends)
    try:
        with torch.inference_mode():
            yield
    finally:
        context.reset_context()


def run(llm: Any, texts: Sequence[Sequence[int]]) -> Tensor:
    """The hidden states of all tokens of some texts, read in one step, by calling the model."""
    token_ids = torch.tensor([token_id for text in texts for token_id in text])
    positions = torch.cat([torch.arange(len(text)) for text in texts])
    with one_step(llm, [len(text) for text in texts]):
        return model_of(llm)(token_ids, positions)


def read(llm: Any, texts: Sequence[Sequence[int]]) -> Tensor:
    """The stream behind the embedding and behind each layer, [num_layers + 1, num_tokens, hidden_size]."""
    return outputs(llm, texts, lambda model: [model.model.embed_tokens, *model.model.layers])


def outputs(llm: Any, texts: Sequence[Sequence[int]], chosen: Any) -> Tensor:
    """What some modules return, `chosen(model)`, stacked, float32."""
    found: list[Tensor] = []
    hooks = [
        module.register_forward_hook(lambda _, inputs, output: found.append(output.clone()))
        for module in chosen(model_of(llm))
    ]
    try:
        run(llm, texts)
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack(found).float()


def size(x: Tensor) -> Tensor:
    """The root mean square of the last dimension, in the middle of all tokens."""
    return x.square().mean(-1).sqrt().median(-1).values


def lens(llm: Any, streams: Tensor) -> Tensor:
    """Logits of what stands in the stream, as if the model ended there; the same leading dimensions."""
    model = model_of(llm)
    with torch.inference_mode():
        return F.linear(model.model.norm(streams.to(model.lm_head.weight.dtype)), model.lm_head.weight).float()


def stories(first: int, count: int, llm: Any) -> list[list[int]]:
    """Token ids of some of the recorded stories."""
    texts = json.loads(STORIES.read_text(encoding="utf-8"))[first : first + count]
    return [llm.tokenizer.encode(text) for text in texts]


def loss(llm: Any, texts: Sequence[Sequence[int]]) -> float:
    """How badly a model guesses each token of some texts but the first, the mean over all tokens."""
    logits = lens_of_hidden(llm, run(llm, texts))
    losses, start = [], 0
    for text in texts:
        rows, wanted = logits[start : start + len(text) - 1], torch.tensor(text[1:])
        losses.append(F.cross_entropy(rows, wanted, reduction="none"))
        start += len(text)
    return float(torch.cat(losses).mean())


def lens_of_hidden(llm: Any, hidden_states: Tensor) -> Tensor:
    """Logits of all tokens from the model's own hidden states."""
    with torch.inference_mode():
        return F.linear(hidden_states, model_of(llm).lm_head.weight).float()


@contextmanager
def without_layer(llm: Any, number: int) -> Iterator[Any]:
    """An engine of whose model a layer does nothing, for a while."""
    with mock.patch.object(model_of(llm).model.layers[number], "forward", lambda positions, stream: stream):
        yield llm


def hugging_face_logits(token_ids: Sequence[int], at_once: bool = True) -> Tensor:
    """[num_tokens, vocab_size] float32, of Hugging Face's Qwen3ForCausalLM with the bundled weights.

    Args:
        at_once: False reads one token after the other, with its cache, so that sums are made in another order.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(BUNDLED_MODEL, dtype=torch.float32)
    with torch.inference_mode():
        if at_once:
            return model(torch.tensor([list(token_ids)]), use_cache=False).logits[0]
        cache, rows = None, list[Tensor]()
        for token_id in token_ids:
            result = model(torch.tensor([[token_id]]), past_key_values=cache, use_cache=True)
            cache, rows = result.past_key_values, [*rows, result.logits[0, -1]]
        return torch.stack(rows)


# Other ways to attend, for `other_attend`.
CUT = """
heads = qkv.unflatten(-1, (-1, self.head_dim))
q, k, v = heads.split([self.num_heads, self.num_kv_heads, self.num_kv_heads], dim=1)
"""
WAYS = {
    "wrong groups": """
order = [h for first in range(self.num_kv_heads) for h in range(first, self.num_heads, self.num_kv_heads)]
q, k = self.rotary_emb(positions, self.q_norm(q), self.k_norm(k))
output = self.attn(q[:, order], k, v)
return output[:, [order.index(h) for h in range(self.num_heads)]].flatten(1)
""",
    "no norm": """
q, k = self.rotary_emb(positions, q, k)
return self.attn(q, k, v).flatten(1)
""",
    "norm after the rotation": """
q, k = self.rotary_emb(positions, q, k)
return self.attn(self.q_norm(q), self.k_norm(k), v).flatten(1)
""",
}


def other_attend(way: str) -> Without:
    """Our engine with one of `WAYS` to attend."""
    return Without(dataclasses.replace(manifest.get("ch15.attend"), without=CUT + WAYS[way]))


def other_layer(body: str) -> Without:
    """Our engine with another body of `Qwen3DecoderLayer.forward`."""
    return Without(dataclasses.replace(manifest.get("ch15.decoder_layer"), without=body))


def logits_of(llm: Any, token_ids: Sequence[int]) -> Tensor:
    """[num_tokens, vocab_size], of all tokens of one text."""
    return lens_of_hidden(llm, run(llm, [token_ids]))


# The open exercise.


class Streams(NamedTuple):
    """What the bundled model made of some texts.

    Args:
        early: [num_tokens, hidden_size], the stream after `EARLY` of its layers.
        late: [num_tokens, hidden_size], what its head reads: the stream after all of them, normalized.
    """

    early: Tensor
    late: Tensor


@lru_cache(maxsize=1)
def known_and_other() -> tuple[Streams, Streams]:
    """Both streams of 24 stories, and of eight others."""
    with LLM("qwen3-tiny", **OPTIONS) as llm:
        found = []
        for first, count in ((0, 24), (24, 8)):
            streams = read(llm, stories(first, count, llm))
            with torch.inference_mode():
                late = model_of(llm).model.norm(streams[-1])
            found.append(Streams(streams[EARLY].clone(), late.clone()))
        return found[0], found[1]


@lru_cache(maxsize=1)
def head() -> Tensor:
    """The head's weight, [vocab_size, hidden_size]."""
    from safetensors.torch import load_file

    assert load_hf_config(resolve_model("qwen3-tiny")).tie_word_embeddings
    return load_file(Path(BUNDLED_MODEL, "model.safetensors"))["model.embed_tokens.weight"].float()


def same_tokens(guessed: Tensor, streams: Streams) -> float:
    """How often the head finds the same token most likely in a guess as in what the model really made."""
    best, right = (F.linear(x.float(), head()).argmax(-1) for x in (guessed, streams.late))
    return float((best == right).double().mean())


def plain_lens(early: Tensor, late: Tensor, new: Tensor) -> Tensor:
    """The plain answer: the last norm and the head read the early stream."""
    from safetensors.torch import load_file

    weight = load_file(Path(BUNDLED_MODEL, "model.safetensors"))["model.norm.weight"].float()
    return new * (new.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight
