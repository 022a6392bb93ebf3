"""Our answers to chapter 11, rotary embedding, cut out of nanovllm/, each with its reason."""

# ruff: noqa
# mypy: ignore-errors
# fmt: off

from __future__ import annotations

import torch
from torch import Tensor, nn
from nanovllm.layers.rotary_embedding import apply_rotary_emb, rope_table, RotaryEmbedding, get_rope
import math
from torch import Tensor


# --- ch11.apply_rotary_emb
# All heads of a token and all pairs of a head are turned by one expression, because a half times a cosine works number by
# number. In the checkpoint's own code the same is written as x * cos + rotate_half(x) * sin, with each cosine twice; both are
# right. Halves or neighbors is a convention: the features of a head have no order of their own, and whoever trained the model
# has chosen one. float32 is for the products: in bfloat16 two of them that nearly cancel leave nothing that is right.
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
    x1, x2 = x.float().chunk(2, dim=-1)
    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1).to(x.dtype)


# --- ch11.rope_table
# The angles depend on nothing but the position, so they are computed once, for all layers, when the model is made; a step only
# looks them up. 2,048 positions of 64 numbers are half a megabyte, and 40,960 positions of Qwen3 with 128 are 21. The table is
# float32 even where the model is bfloat16: that has 8 bits for a number's digits, so from 257 on not every position has a
# number of its own, and neighbors get the same angle. It is no weight either: the buffer is not saved, and the loader does not
# look for it. Two roundings can be right: at position 30,000 a float32 angle is known to 0.002 radians only, and we round
# as the training did.
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
    # The rounding of the training code, too: at position 30,000 another one would turn by 0.002
    # radians more.
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    angles = torch.outer(torch.arange(max_position, dtype=torch.float32), 1.0 / base**exponents)
    return torch.cat((angles.cos(), angles.sin()), dim=-1).unsqueeze(1)


# --- ch11.forward
# In a decode step there is one token of each sequence, all at different positions; in a prefill there are pieces of prompts,
# which begin anywhere. So the position cannot be counted here, it has to be told, and the model runner knows it. Keys are rotated
# before they are stored: a key's position never changes, so it is rotated once, and every later query finds it ready. And the
# result still depends on distances only, so a cached prefix serves every request that begins with it.
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
    cos, sin = self.cos_sin_cache[positions].chunk(2, dim=-1)
    return apply_rotary_emb(q, cos, sin), apply_rotary_emb(k, cos, sin)


# --- ch11.long_frequencies
# A fast pair says exactly how near a neighbor is, and a text of any length shows it nothing new. A slow pair turns less than
# once in 2,048 positions, so later positions bring angles which the model has never met. Dividing all frequencies mends the slow
# pairs and ruins the fast ones: neighbors come so close together that the model cannot tell them apart, and without further
# training that costs more than it gains. Another base stretches the slow pairs most and pair 0 not at all (known as NTK-aware
# scaling). Ours looks at each pair: whoever has gone round once in the training stays as it is, the others are divided, and the loss is
# 0.37 both times (the idea of NTK-by-parts, and of YaRN, which go from the one to the other smoothly). None of this gives the model a longer
# memory: its layers were trained to find something at most 2,048 tokens away.
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
    plain = base ** -(torch.arange(0, head_dim, 2) / head_dim)
    turns = trained * plain / (2 * math.pi)  # of each pair, in the longest text of the training
    # Who has gone round knows every angle. The others must not come where they have never been.
    return torch.where(turns >= 1, plain, plain * min(1.0, trained / wanted))
