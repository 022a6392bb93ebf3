# ruff: noqa
DIAGNOSIS = """
exp of a large gate is inf, and inf / inf is nan. 1 / (1 + exp(-g)) is the same share, and has no such place.
"""


# --- first
import torch


def forward(self, x):
    gate, up = x.chunk(2, dim=-1)
    return gate * torch.exp(gate) / (1 + torch.exp(gate)) * up


# --- second
def forward(self, x):
    size = x.shape[-1] // 2
    power = x[..., :size].exp()
    return x[..., :size] * power / (power + 1) * x[..., size:]
