"""Your answers to chapter 11, rotary embedding.

Write here, or in the notebook's cells, which write here. Helpers and imports may stand beside a function, under its
marker line; those at the top are for all. "python -m exercises check" says how it is going; "python -m exercises" what
there is to do.
"""

# derived: 1d853a61c79d
# ruff: noqa
# mypy: ignore-errors
# fmt: off

from __future__ import annotations

import torch
from torch import Tensor, nn
from nanovllm.layers.rotary_embedding import apply_rotary_emb, rope_table, RotaryEmbedding, get_rope
from torch import Tensor


# --- ch11.apply_rotary_emb
def apply_rotary_emb(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs of every head by the angles of its token.

    A pair is (x[i], x[i + head_dim / 2]): one feature of the first half, one of the second. Drawn
    as an arrow to the point (first, second), it turns counterclockwise by its angle.

    Args:
        x: [num_tokens, num_heads, head_dim], of any float dtype; it stays as it is.
        cos, sin: [num_tokens, 1, head_dim / 2], float32: of the angle of each pair.

    Returns:
        same shape and dtype as `x`; computed in float32.
    """
    raise NotImplementedError("ch11.apply_rotary_emb")


# --- ch11.rope_table
def rope_table(head_dim: int, max_position: int, base: float) -> Tensor:
    """Cosines and sines of the angles of all positions.

    At position p, pair i has the angle p * base ** (-2 i / head_dim), in radians.

    Args:
        head_dim: size of a head, even.
        max_position: number of positions; the first is 0.
        base: the larger, the slower the pairs turn; pair 0 always turns by one radian a position.

    Returns:
        [max_position, 1, head_dim], float32: the cosines of all pairs, then their sines. All of it
        is computed in float32 or better, so that it is right at position 30,000, too, and whatever
        torch's default dtype is: while an engine makes a model, it is the model's.
    """
    raise NotImplementedError("ch11.rope_table")


# --- ch11.forward
def forward(self, positions: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys to their positions.

    The tokens of a step may belong to several sequences, and may begin anywhere in them.

    Args:
        positions: [num_tokens], int64: where each token is in its own text.
        q, k: [num_tokens, num_heads, head_dim], [num_tokens, num_kv_heads, head_dim]; they stay
            as they are.

    Returns:
        the rotated queries and the rotated keys, of the same shapes and dtypes.
    """
    raise NotImplementedError("ch11.forward")


# --- ch11.long_frequencies
def long_frequencies(head_dim: int, base: float, trained: int, wanted: int) -> torch.Tensor:
    """How fast each pair turns, in a text that is longer than those of the training.

    The model was trained with base ** (-2 i / head_dim) radians a position for pair i, on texts of
    `trained` tokens. It is not trained again; only its table is made with other frequencies.

    The goal: a small loss on long texts, and nearly the same as before on short ones. In
    `exercises.kit.rope_work`, qwen3-tiny reads stories two and three times as long as in its
    training. A loss of at most 0.45 and 0.70 is asked for; and of at most 0.42 for the first 2,048
    tokens, with the frequencies for twice as many.

    Args:
        head_dim: size of a head, even.
        base, trained: of the training.
        wanted: tokens of the longest text that has to be read. If that is not more than `trained`,
            the frequencies stay those of the training.

    Returns:
        [head_dim / 2], floats, finite and not negative: radians a position, of pair 0 first.
    """
    raise NotImplementedError("ch11.long_frequencies")
