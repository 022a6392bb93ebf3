# ruff: noqa
DIAGNOSIS = """
GELU is another curve. This model was trained with SiLU.
"""


# --- first
def forward(self, x):
    gate, up = x.chunk(2, dim=-1)
    return F.gelu(gate) * up


# --- second
import torch


def forward(self, x):
    size = x.shape[-1] // 2
    gate = x[..., :size]
    return 0.5 * gate * (1 + torch.erf(gate / 2**0.5)) * x[..., size:]
