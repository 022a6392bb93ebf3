# ruff: noqa
DIAGNOSIS = """
The halves were taken for neighbors, every second number a gate. The gates are the first half of each row.
"""


# --- first
def forward(self, x):
    gate, up = x[..., ::2], x[..., 1::2]
    return F.silu(gate) * up


# --- second
import torch


def forward(self, x):
    gate, up = x.unflatten(-1, (-1, 2)).unbind(-1)
    return gate * torch.sigmoid(gate) * up
