# ruff: noqa
DIAGNOSIS = """
Both halves went through SiLU. Only the gate does; up is multiplied as it is.
"""


# --- first
def forward(self, x):
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * F.silu(up)


# --- second
import torch


def forward(self, x):
    size = x.shape[-1] // 2
    both = x * torch.sigmoid(x)
    return both[..., :size] * both[..., size:]
