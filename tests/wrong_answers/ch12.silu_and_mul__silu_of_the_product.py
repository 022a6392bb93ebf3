# ruff: noqa
DIAGNOSIS = """
SiLU was taken of the product. First comes SiLU of the gate, then the product.
"""


# --- first
def forward(self, x):
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate * up)


# --- second
import torch


def forward(self, x):
    size = x.shape[-1] // 2
    return F.silu(torch.mul(x[..., size:], x[..., :size]))
