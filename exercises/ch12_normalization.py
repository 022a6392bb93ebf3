"""Your answers to chapter 12, normalization.

Write here, or in the notebook's cells, which write here. Helpers and imports may stand beside a function, under its
marker line; those at the top are for all. "python -m exercises check" says how it is going; "python -m exercises" what
there is to do.
"""

# derived: e77a463f7e72
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
    raise NotImplementedError("ch12.normalize")


# --- ch12.norm_forward
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
    raise NotImplementedError("ch12.norm_forward")


# --- ch12.silu_and_mul
def forward(self, x: Tensor) -> Tensor:
    """The gate decides how much of each feature passes.

    Args:
        x: [..., 2 * size], of any float dtype: the gate, then what may pass. It stays as it is.

    Returns:
        [..., size], of the same dtype: silu(gate) * up, where silu(g) is g / (1 + exp(-g)).
    """
    raise NotImplementedError("ch12.silu_and_mul")


# --- ch12.half_norm
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
    raise NotImplementedError("ch12.half_norm")
