# ruff: noqa
DIAGNOSIS = """
SiLU is missing: the halves were multiplied as they are.
"""


# --- first
def forward(self, x):
    gate, up = x.chunk(2, dim=-1)
    return gate * up


# --- second
import torch


def forward(self, x):
    size = x.shape[-1] // 2
    return torch.mul(x[..., size:], x[..., :size])
