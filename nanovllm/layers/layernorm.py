"""Root-mean-square normalization (Zhang and Sennrich, 2019)."""

import torch
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """Scales each row to a root mean square of one, then by a learned weight.

    Args:
        hidden_size: length of the rows.
        eps: added to the mean square, so that a row of zeros does not divide by zero.
    """

    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size), requires_grad=False)

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
