"""Rotary position embedding (Su et al., 2021): positions as rotations of pairs of features."""

import torch
from torch import Tensor, nn


def apply_rotary_emb(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (x[i], x[i + head_dim / 2]) by their angles.

    Args:
        x: [num_tokens, num_heads, head_dim].
        cos, sin: [num_tokens, 1, head_dim / 2], float32.

    Returns:
        same shape and dtype as `x`; computed in float32.
    """
    x1, x2 = x.float().chunk(2, dim=-1)
    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1).to(x.dtype)


class RotaryEmbedding(nn.Module):
    """Table of the cosines and sines of all positions.

    Args:
        head_dim: size of a head, even.
        max_position: number of positions.
        base: pair i turns by base ** (-2 i / head_dim) radians a position.
    """

    def __init__(self, head_dim: int, max_position: int, base: float) -> None:
        super().__init__()
        # The rounding of the training code, too: at position 30,000 another one would turn by 0.002
        # radians more.
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        inverse_frequency = 1.0 / base**exponents
        angles = torch.outer(torch.arange(max_position, dtype=torch.float32), inverse_frequency)
        cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1).unsqueeze(1)
        self.cos_sin_cache: Tensor
        self.register_buffer("cos_sin_cache", cos_sin, persistent=False)

    def forward(self, positions: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Rotate queries and keys to their positions.

        Args:
            positions: [num_tokens].
            q, k: [num_tokens, num_heads, head_dim], [num_tokens, num_kv_heads, head_dim].
        """
        cos, sin = self.cos_sin_cache[positions].chunk(2, dim=-1)
        return apply_rotary_emb(q, cos, sin), apply_rotary_emb(k, cos, sin)


def get_rope(head_dim: int, max_position: int, base: float) -> RotaryEmbedding:
    """A model's rotary embedding: made once, and used by all its layers."""
    return RotaryEmbedding(head_dim, max_position, base)
