"""SwiGLU, the gated activation of the MLP (Shazeer, 2020)."""

import torch.nn.functional as F
from torch import Tensor, nn


class SiluAndMul(nn.Module):
    """SiLU of the first half of the features, the gate, times the second half, up."""

    def forward(self, x: Tensor) -> Tensor:
        """The gate decides how much of each feature passes.

        Args:
            x: [..., 2 * size], of any float dtype: the gate, then what may pass. It stays as it is.

        Returns:
            [..., size], of the same dtype: silu(gate) * up, where silu(g) is g / (1 + exp(-g)).
        """
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate) * up
