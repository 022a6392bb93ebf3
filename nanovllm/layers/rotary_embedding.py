"""Rotary position embedding (Su et al., 2021): positions as rotations of pairs of features."""

import torch
from torch import Tensor, nn


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


class RotaryEmbedding(nn.Module):
    """Rotates queries and keys, with a table of all positions.

    Args:
        head_dim: size of a head, even.
        max_position: number of positions.
        base: as for `rope_table`.
    """

    def __init__(self, head_dim: int, max_position: int, base: float) -> None:
        super().__init__()
        self.cos_sin_cache: Tensor
        table = rope_table(head_dim, max_position, base)
        self.register_buffer("cos_sin_cache", table, persistent=False)

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


def get_rope(head_dim: int, max_position: int, base: float) -> RotaryEmbedding:
    """A rotary embedding. A model makes one, and hands it to all its layers."""
    return RotaryEmbedding(head_dim, max_position, base)
