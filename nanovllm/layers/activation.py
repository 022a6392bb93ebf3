"""SwiGLU, the gated activation of the MLP (Shazeer, 2020)."""

import torch
import torch.nn.functional as F
from torch import nn


class SiluAndMul(nn.Module):
    """SiLU of the first half of the features times the second half."""

    optimization = "fused_activation"

    def __init__(self) -> None:
        super().__init__()
        self.is_fused = False  # set by the engine: one kernel for the whole of `forward`

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., 2 * size] -> [..., size]."""
        if self.is_fused:
            from .kernels.fused import silu_and_mul

            return silu_and_mul(x)
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate) * up
