"""Our answers to chapter 02, core architecture, cut out of nanovllm/, each with its reason."""

# ruff: noqa
# mypy: ignore-errors
# fmt: off

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from typing import Any
import numpy as np
from exercises.kit.roofline_work import Device, Model


# --- ch02.kv_bytes_per_token
# Queries are used once and forgotten; keys and values are what later tokens look at, so they alone are kept. That is why
# the number of KV heads counts and not that of the attention heads: with grouped-query attention (GQA), several attention
# heads share one KV head, and the cache shrinks by that factor. head_dim is its own field in newer models: in Qwen3-0.6B,
# 16 heads of 128 numbers make 2,048, twice the hidden size, and hidden_size // num_attention_heads would be wrong by two.
def kv_bytes_per_token(config: Mapping[str, Any], element_size: int) -> int:
    """Bytes that the KV cache needs for one token of a model.

    In every layer, and for every KV head, a token has a key and a value: two vectors of `head_dim`
    numbers each.

    Args:
        config: what the model's `config.json` says, and stays as it is. These are always there:
            "num_hidden_layers", "num_attention_heads" and "hidden_size". Two others may be
            missing, or None:

            - "num_key_value_heads": without it, every attention head is a KV head of its own;
            - "head_dim": without it, the attention heads share "hidden_size" evenly.
        element_size: bytes of one number: 2 in bfloat16, 4 in float32.

    Returns:
        a whole number (an `int`) of bytes.
    """
    num_heads = config["num_attention_heads"]
    num_kv_heads = config.get("num_key_value_heads") or num_heads
    head_dim = config.get("head_dim") or config["hidden_size"] // num_heads
    return int(2 * config["num_hidden_layers"] * num_kv_heads * head_dim * element_size)


# --- ch02.step_seconds
# Weights do not depend on who takes part: that is why a batch is cheap. The cache does: every sequence reads its own, so
# it is what a large batch costs in the end. Arithmetic grows with the computed tokens only, and in decode that is one a
# sequence; a prefill has hundreds, which is why the two phases are limited by different things. The head is by itself
# because it runs for the last token of a sequence only: in a model with a large vocabulary it is a quarter of all weights,
# and would be a quarter of a prefill.
def step_seconds(scheduled: Sequence[tuple[int, int]], model: Model, device: Device) -> float:
    """The least time that one step of the engine takes on a device: its roofline.

    Memory and arithmetic work side by side, so a step takes as long as the longer of the two.

    - Memory: all weights, layers and head, are read once a step. Keys and values of tokens stored
      before are read, those of tokens computed now are written: each token's once.
    - Arithmetic: a token that is computed takes two operations, a multiplication and an addition,
      for each parameter of the layers. The head takes two for each of its parameters, and runs
      once for each sequence, however many of its tokens are computed.

    Nothing else counts (activations, the arithmetic of attention, the program around it).

    Args:
        scheduled: for each sequence of the step, how many of its tokens are stored in the cache
            already, and how many this step computes.
        model: has `layer_parameters`, `head_parameters`, `kv_bytes` (of one token, all layers) and
            `element_size` (bytes of one parameter).
        device: has `bytes_per_second` and `flops_per_second`, operations per second.

    Returns:
        seconds, a `float`. A step without sequences does not run: 0.0.
    """
    if not scheduled:
        return 0.0
    stored, computed = (sum(counts) for counts in zip(*scheduled, strict=True))
    weights = (model.layer_parameters + model.head_parameters) * model.element_size
    moved = weights + model.kv_bytes * (stored + computed)
    operations = 2 * (model.layer_parameters * computed + model.head_parameters * len(scheduled))
    return max(moved / device.bytes_per_second, operations / device.flops_per_second)


# --- ch02.predict_seconds
# The three prices are those of the roofline, with real numbers in the place of the data sheet's: what a step takes
# anyway (weights and launches), what a sequence adds, and what a token in the cache adds. It is wrong by 3.5 % where the
# nearest step is wrong by 27 %, and it goes on beyond what was seen, because the formula has a reason. Schedulers that
# promise a time between tokens do this: they fit a few prices to measured steps, and let in as many as the time allows.
def predict_seconds(
    seen: Sequence[tuple[int, int, float]],
    num_seqs: int,
    context_len: int,
) -> float:
    """How long a decode step takes, judged by steps that were measured on the same GPU.

    The goal: of the recorded steps of an H100, half are seen, and the others are asked for. Who
    answers with the nearest step that was seen is wrong by 27 % (the median of all answers); at
    most 8 % are asked for. The same holds on a GPU that takes three times as long for everything.
    And if no context beyond 2,100 tokens was seen, the error at 8,200 is at most 20 %, where the
    nearest one is wrong by half.

    It is called again for each answer, and keeps nothing in between. `np` is there.

    Args:
        seen: for each measured step the number of its sequences, the tokens of each of them, and
            its seconds; eight steps or more, in any order. The list stays as it is.
        num_seqs, context_len: of the step that is asked for.

    Returns:
        seconds, a `float`.
    """

    def work(num_seqs: int, context_len: int) -> list[float]:
        # What every step reads, what each sequence costs, and the keys and values that are read.
        return [1.0, num_seqs, num_seqs * context_len]

    features = np.array([work(n, length) for n, length, _ in seen])
    prices = np.linalg.lstsq(features, np.array([seconds for *_, seconds in seen]), rcond=None)[0]
    return float(prices @ work(num_seqs, context_len))
