# ruff: noqa
DIAGNOSIS = """
The exponent of pair i is -2 i / head_dim; here it is only half of that, so that pairs slow down too little.
torch.arange(0, head_dim, 2) has the doubled numbers already.
"""


# --- first
def rope_table(head_dim, max_position, base):
    speeds = base ** -(torch.arange(head_dim // 2, dtype=torch.float32) / head_dim)
    angles = torch.outer(torch.arange(max_position, dtype=torch.float32), speeds)
    return torch.cat((angles.cos(), angles.sin()), dim=-1).unsqueeze(1)


# --- second
def rope_table(head_dim, max_position, base):
    speeds = torch.tensor([1.0 / base ** (i / head_dim) for i in range(head_dim // 2)])
    positions = torch.arange(max_position).float().view(-1, 1, 1)
    return torch.cat(((positions * speeds).cos(), (positions * speeds).sin()), dim=-1)
