"""SwiGLU, the gated activation of the MLP (Shazeer, 2020)."""

import torch.nn.functional as F
from torch import Tensor, nn


class SiluAndMul(nn.Module):
    """SiLU of the first half of the features times the second half."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., 2 * size] -> [..., size]."""
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate) * up
