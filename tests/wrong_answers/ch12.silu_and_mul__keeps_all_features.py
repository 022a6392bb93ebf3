# ruff: noqa
DIAGNOSIS = """
Both halves came back behind one another. They are multiplied: only half as many features come back.
"""


# --- first
import torch


def forward(self, x):
    gate, up = x.chunk(2, dim=-1)
    return torch.cat((F.silu(gate), up), dim=-1)


# --- second
import torch


def forward(self, x):
    size = x.shape[-1] // 2
    result = x.clone()
    result[..., :size] = x[..., :size] * torch.sigmoid(x[..., :size])
    return result
