# ruff: noqa
DIAGNOSIS = """
The positions begin at 1. The first one is 0, which turns nothing, and the last is max_position - 1.
"""


# --- first
def rope_table(head_dim, max_position, base):
    speeds = 1.0 / base ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angles = torch.outer(torch.arange(1, max_position + 1, dtype=torch.float32), speeds)
    return torch.cat((angles.cos(), angles.sin()), dim=-1).unsqueeze(1)


# --- second
def rope_table(head_dim, max_position, base):
    speeds = torch.tensor([base ** (-i / head_dim) for i in range(0, head_dim, 2)])
    positions = torch.arange(max_position) + 1
    angles = positions[:, None, None] * speeds
    return torch.cat((angles.cos(), angles.sin()), -1)
