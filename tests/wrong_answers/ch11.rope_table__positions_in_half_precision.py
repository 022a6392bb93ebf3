# ruff: noqa
DIAGNOSIS = """
The positions are numbers of bfloat16. From 257 on it does not have every whole number, so neighbors get the same
angles. float32 has them all up to 16 millions.
"""


# --- first
def rope_table(head_dim, max_position, base):
    speeds = 1.0 / base ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    positions = torch.arange(max_position, dtype=torch.bfloat16).float()
    angles = torch.outer(positions, speeds)
    return torch.cat((angles.cos(), angles.sin()), dim=-1).unsqueeze(1)


# --- second
def rope_table(head_dim, max_position, base):
    speeds = 1.0 / base ** (torch.arange(0, head_dim, 2).double() / head_dim)
    angles = torch.arange(max_position).bfloat16().double()[:, None, None] * speeds
    return torch.cat((angles.cos(), angles.sin()), dim=-1).float()
