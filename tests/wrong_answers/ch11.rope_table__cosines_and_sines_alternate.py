# ruff: noqa
DIAGNOSIS = """
Cosines and sines alternate, pair by pair. All cosines come first, then all sines, as chunk(2) will cut them.
"""


# --- first
def rope_table(head_dim, max_position, base):
    speeds = 1.0 / base ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angles = torch.outer(torch.arange(max_position, dtype=torch.float32), speeds)
    return torch.stack((angles.cos(), angles.sin()), dim=-1).flatten(1).unsqueeze(1)


# --- second
def rope_table(head_dim, max_position, base):
    table = torch.zeros(max_position, 1, head_dim)
    for i in range(0, head_dim, 2):
        angles = torch.arange(max_position, dtype=torch.float64) / base ** (i / head_dim)
        table[:, 0, i], table[:, 0, i + 1] = angles.cos().float(), angles.sin().float()
    return table
