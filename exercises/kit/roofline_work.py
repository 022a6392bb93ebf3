"""What chapter 2 counts and measures with: real models and devices, recorded decode steps, and a wide model.

The recorded steps are in `nanovllm/viz/data/decode_h100.json`, with where they come from.
"""

import json
import random
import statistics
import tempfile
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from nanovllm import LLM
from nanovllm.viz.memory import PUBLISHED, ModelSize, model_size

MeasuredStep = tuple[int, int, float]  # sequences, tokens of each, seconds
Predict = Callable[[Sequence[MeasuredStep], int, int], float]

# What some config.json files say of a model's shape, from huggingface.co; not all of them say everything.
CONFIGS: dict[str, dict[str, Any]] = {
    "LLaMA-7B": {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32},
    "Llama-3.1-8B": {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "Qwen2.5-7B": {"hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4},
} | {
    name: {
        "hidden_size": hidden_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": 128,
    }
    for name, (hidden_size, _, num_layers, num_heads, num_kv_heads, _) in PUBLISHED.items()
}


class Model(NamedTuple):
    """What a step's least time depends on.

    Args:
        layer_parameters: weights that every computed token is multiplied with.
        head_parameters: weights of the head, which makes the logits.
        kv_bytes: of the keys and values of one token, over all layers.
        element_size: bytes of one weight.
    """

    layer_parameters: int
    head_parameters: int
    kv_bytes: int
    element_size: int = 2


class Device(NamedTuple):
    """How fast a device reads and writes its memory, and how fast it computes."""

    bytes_per_second: float
    flops_per_second: float


H100 = Device(3.35e12, 989e12)  # the H100 SXM's data sheet, in bfloat16, without sparsity


def model_of(name: str) -> Model:
    """A Qwen3 model in bfloat16. Its embedding is no part of it: of that table a token reads one row."""
    size: ModelSize = model_size(name)
    hidden_size, *_, is_tied = PUBLISHED[name]
    head = 151_936 * hidden_size
    return Model(size.num_parameters - head * (1 if is_tied else 2), head, size.kv_bytes_per_token())


def recorded() -> tuple[list[MeasuredStep], dict[str, Any]]:
    """Decode steps measured on an H100, with graphs, and how they were made.

    The length is that in the middle of the timed steps: in each of them, every sequence gets one token longer.
    """
    data = json.loads((files("nanovllm.viz") / "data" / "decode_h100.json").read_text(encoding="utf-8"))
    rows, more = data.pop("rows"), data["warmup"] + data["iters"] // 2
    return [(row["bs"], row["context_len"] + more, row["graph_ms"][1] / 1e3) for row in rows], data


def nearest_seen(seen: Sequence[MeasuredStep], num_seqs: int, context_len: int) -> float:
    """The trivial prediction: the time of the step that is most like the one asked for, by ratios."""

    def distance(step: MeasuredStep) -> float:
        return max(step[0] / num_seqs, num_seqs / step[0]) * max(step[1] / context_len, context_len / step[1])

    return min(seen, key=distance)[2]


def halves(steps: Sequence[MeasuredStep], num_splits: int = 20) -> list[tuple[list[MeasuredStep], list[MeasuredStep]]]:
    """The steps, split at random into seen ones and as many unseen ones, again and again."""
    splits = []
    for seed in range(num_splits):
        order = random.Random(seed).sample(list(steps), len(steps))
        splits.append((order[: len(steps) // 2], order[len(steps) // 2 :]))
    return splits


def median_error(predict: Predict, splits: Sequence[tuple[list[MeasuredStep], list[MeasuredStep]]]) -> float:
    """Median of |predicted - measured| / measured over all unseen steps."""
    return statistics.median(
        abs(predict(list(seen), num_seqs, context_len) - seconds) / seconds
        for seen, unseen in splits
        for num_seqs, context_len, seconds in unseen
    )


def wide_llm(**options: Any) -> LLM:
    """An engine whose model has the layers of Qwen3-0.6B, but 4 of its 28, and random weights: 63 million of them."""
    config = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 2048, "head_dim": 128}
    config |= {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 4, "num_attention_heads": 16}
    config |= {"num_key_value_heads": 8, "max_position_embeddings": 1024, "rms_norm_eps": 1e-6, "rope_theta": 1e6}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
        return LLM(folder, load_format="dummy", device="cpu", disabled_optimizations="all", **options)
