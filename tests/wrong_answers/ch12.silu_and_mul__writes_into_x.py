# ruff: noqa
DIAGNOSIS = """
It was written into x: the halves that chunk gives are views of it, no copies.
"""


# --- first
import torch


def forward(self, x):
    gate, up = x.chunk(2, dim=-1)
    gate *= torch.sigmoid(gate)
    return gate * up


# --- second
import torch


def forward(self, x):
    size = x.shape[-1] // 2
    x[..., :size] *= torch.sigmoid(x[..., :size])
    return x[..., :size] * x[..., size:]
