# ruff: noqa
DIAGNOSIS = """
The sines come first. The first half of a row are the cosines, the second half the sines.
"""


# --- first
def rope_table(head_dim, max_position, base):
    speeds = 1.0 / base ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angles = torch.outer(torch.arange(max_position, dtype=torch.float32), speeds)
    return torch.cat((angles.sin(), angles.cos()), dim=-1).unsqueeze(1)


# --- second
def rope_table(head_dim, max_position, base):
    table, half = torch.zeros(max_position, 1, head_dim), head_dim // 2
    for i in range(half):
        angles = torch.arange(max_position, dtype=torch.float64) * base ** (-2 * i / head_dim)
        table[:, 0, :half][:, i] = angles.sin()
        table[:, 0, half:][:, i] = angles.cos()
    return table
