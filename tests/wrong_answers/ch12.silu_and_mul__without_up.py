# ruff: noqa
DIAGNOSIS = """
The second half is missing: what the gate lets pass was never multiplied.
"""


# --- first
def forward(self, x):
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate)


# --- second
import torch


def forward(self, x):
    size = x.shape[-1] // 2
    gate = x[..., :size]
    return gate * torch.sigmoid(gate)
