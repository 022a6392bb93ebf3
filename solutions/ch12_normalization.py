"""Our answers to chapter 12, normalization, cut out of nanovllm/, each with its reason."""

# ruff: noqa
# mypy: ignore-errors
# fmt: off

from __future__ import annotations

import torch
from torch import Tensor, nn
from nanovllm.layers.layernorm import RMSNorm
import torch.nn.functional as F
from nanovllm.layers.activation import SiluAndMul
from torch import Tensor


# --- ch12.normalize
# keepdim is what makes it serve any number of dimensions: rows of the stream, and heads of queries and keys. Nothing is subtracted:
# LayerNorm takes the mean away first, and a trained stream has hardly any. The statistics are float32 because a square has twice
# the exponent of its number: in float16 everything above 255 becomes inf. The order at the end, round and then multiply, is
# the one that Hugging Face has and the training had; in bfloat16 the other order gives another last digit in about every fourth
# number. torch.nn.functional.rms_norm multiplies first and rounds then, so it is not the same there.
def normalize(self, x: Tensor) -> Tensor:
    """Scale each row to a root mean square of one, then by the weight.

    The factor of a row is 1 / sqrt(mean square + `self.eps`); the weight is `self.weight`, a
    number for each feature.

    Args:
        x: [..., hidden_size], of any float dtype; it stays as it is.

    Returns:
        same shape and dtype. All up to the scaled row is computed in float32; it is rounded to
        the dtype of `x`, and then multiplied by the weight, which has that dtype, too.
    """
    x_float = x.float()
    variance = x_float.square().mean(dim=-1, keepdim=True)
    return (x_float * torch.rsqrt(variance + self.eps)).to(x.dtype) * self.weight


# --- ch12.norm_forward
# The sum is what the next layer adds to, so it has to come back as it is: a stream that is normalized at every layer would forget
# how large it was, and with it how much each layer has said. Norm and sum are one function because they read the same rows.
# Written as here it saves nothing yet, each operation is still on its own; but a kernel that does both reads x and the residual once
# and writes the sum and the normalized rows once. vLLM has such a kernel, and hands the residual from norm to norm. Our own layers keep one stream
# and add to it; the lever fused_norm has the product before the norm do the addition (chapter 17).
def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
    """Normalize `x`, or the sum of `x` and `residual`.

    Args:
        x: [..., hidden_size].
        residual: of the same shape and dtype; the stream that `x` is to be added to. `x` and
            `residual` stay as they are.

    Returns:
        the normalized rows, of the same shape and dtype; with a residual, a tuple of them and
        of the sum, as it was before it was normalized.
    """
    if residual is None:
        return self.normalize(x)
    residual = residual + x
    return self.normalize(residual), residual


# --- ch12.silu_and_mul
# One product with a matrix has made both halves (chapter 9 packs gate_proj and up_proj), so they lie behind each other in every
# row. Which of them is the gate is a convention of the loader: exchanged, every weight is there and the model writes nonsense. g / (1 + exp(-g)) is written as
# g * sigmoid(g) or silu, which do not overflow for a large number; exp(g) / (1 + exp(g)) would give inf / inf.
def forward(self, x: Tensor) -> Tensor:
    """The gate decides how much of each feature passes.

    Args:
        x: [..., 2 * size], of any float dtype: the gate, then what may pass. It stays as it is.

    Returns:
        [..., size], of the same dtype: silu(gate) * up, where silu(g) is g / (1 + exp(-g)).
    """
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


# --- ch12.half_norm
# A normalized row does not depend on the row's size, so we may choose the size before we square. Divided by its own largest number, a row
# has a largest square of exactly 1, nothing overflows, and what becomes too small to be seen beside 1 plays no part in the mean.
# Softmax subtracts its maximum for the same reason (chapter 10). vLLM and we go to float32 instead, which is simpler and
# costs nothing where rows wait for the memory; on chips that have float16 alone, this is what is done.
def half_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm on a chip that has no float but float16.

    The goal, in `exercises.kit.norm_work`: qwen3-tiny with this norm everywhere has a loss of at
    most 0.38 on stories. With the formula of RMSNorm as it stands, all in float16, it has 2.16;
    with statistics in float32, 0.375.

    Each number has to be right to 0.005, or to 0.005 of itself if it is larger than 1, in rows with
    a root mean square of 0.05 or more and weights near 1, whatever float16 holds: up to 65,504. A
    row of zeros stays zeros.

    All tensors on the way are float16 (single numbers, booleans and integers do not count), and no
    number is taken out of a tensor. What comes in stays as it is.

    Args:
        x: [..., hidden_size], float16; hidden_size is at most 2,048.
        weight: [hidden_size], float16.
        eps: that of the norm, 1e-6; it may be left out where it makes no difference.

    Returns:
        [..., hidden_size], float16: each row divided by its root mean square, times the weight.
    """
    top = x.abs().amax(dim=-1, keepdim=True).clamp_min(1e-4)  # a row of zeros is divided by something, too
    small = x / top  # from -1 to 1; whatever the row was divided by, the norm takes it out again
    return small * torch.rsqrt(small.square().mean(dim=-1, keepdim=True) + eps) * weight
