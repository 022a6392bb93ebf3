"""Root-mean-square normalization (Zhang and Sennrich, 2019), with the residual addition folded in."""

import torch
from torch import nn


class RMSNorm(nn.Module):
    """Scales each row to a root mean square of one, then by a learned weight.

    Args:
        hidden_size: length of the rows.
        eps: added to the mean square, so that a row of zeros does not divide by zero.
    """

    optimization = "fused_norm"

    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.is_fused = False  # set by the engine: one kernel for the whole of `forward`
        self.weight = nn.Parameter(torch.ones(hidden_size), requires_grad=False)

    def rms_forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., hidden_size] -> the same shape and dtype; the statistics are computed in float32."""
        x_float = x.float()
        variance = x_float.square().mean(dim=-1, keepdim=True)
        return (x_float * torch.rsqrt(variance + self.eps)).to(x.dtype) * self.weight

    def add_rms_forward(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Add `x` to `residual` and normalize the sum; returns (normalized, sum)."""
        residual = x + residual
        return self.rms_forward(residual), residual

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Normalize `x`, or, with a residual, `x + residual`, and then also return the sum."""
        if self.is_fused:
            from .kernels.fused import add_rms_norm

            output, total = add_rms_norm(x, residual, self.weight, self.eps)
            return output if residual is None else (output, total)
        if residual is None:
            return self.rms_forward(x)
        return self.add_rms_forward(x, residual)
