# ruff: noqa
DIAGNOSIS = """
The gate itself is missing: SiLU is the gate times its sigmoid.
"""


# --- first
import torch


def forward(self, x):
    gate, up = x.chunk(2, dim=-1)
    return torch.sigmoid(gate) * up


# --- second
import torch


def forward(self, x):
    size = x.shape[-1] // 2
    return x[..., size:] / (1 + torch.exp(-x[..., :size]))
