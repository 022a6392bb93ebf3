# ruff: noqa
DIAGNOSIS = """
All pairs turn by one radian a position. Then every pair comes round after 6.3 positions, and far and near look the
same: pair i turns by base ** (-2 i / head_dim).
"""


# --- first
def rope_table(head_dim, max_position, base):
    angles = torch.arange(max_position, dtype=torch.float32)[:, None].expand(-1, head_dim // 2)
    return torch.cat((angles.cos(), angles.sin()), dim=-1).unsqueeze(1)


# --- second
def rope_table(head_dim, max_position, base):
    positions = torch.arange(max_position, dtype=torch.float64).view(-1, 1, 1)
    half = head_dim // 2
    return torch.cat((positions.cos().repeat(1, 1, half), positions.sin().repeat(1, 1, half)), dim=2).float()
