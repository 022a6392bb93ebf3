# ruff: noqa
DIAGNOSIS = """
The table is [max_position, head_dim]. It needs a dimension of size 1 in the middle, where the heads are: only then
does a row serve all heads of its token.
"""


# --- first
def rope_table(head_dim, max_position, base):
    speeds = 1.0 / base ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angles = torch.outer(torch.arange(max_position, dtype=torch.float32), speeds)
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


# --- second
def rope_table(head_dim, max_position, base):
    table = torch.zeros(max_position, head_dim)
    half = head_dim // 2
    for i in range(half):
        angles = torch.arange(max_position) * base ** (-2 * i / head_dim)
        table[:, i], table[:, i + half] = angles.cos(), angles.sin()
    return table
