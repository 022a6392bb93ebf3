"""Your answers to chapter 02, core architecture.

Write here, or in the notebook's cells, which write here. Helpers and imports may stand beside a function, under its
marker line; those at the top are for all. "python -m exercises check" says how it is going; "python -m exercises" what
there is to do.
"""

# derived: 02cbaba371bf
# ruff: noqa
# mypy: ignore-errors
# fmt: off

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
import numpy as np
from exercises.kit.roofline_work import Device, Model


# --- ch02.kv_bytes_per_token
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
    raise NotImplementedError("ch02.kv_bytes_per_token")


# --- ch02.step_seconds
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
    raise NotImplementedError("ch02.step_seconds")


# --- ch02.predict_seconds
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
    raise NotImplementedError("ch02.predict_seconds")
