# ruff: noqa
DIAGNOSIS = """
Every cosine is there twice, and every sine. That fits x * cos + rotate_half(x) * sin, but not this engine: it wants
one cosine and one sine a pair.
"""


# --- first
def rope_table(head_dim, max_position, base):
    speeds = 1.0 / base ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angles = torch.outer(torch.arange(max_position, dtype=torch.float32), speeds)
    angles = torch.cat((angles, angles), dim=-1)
    return torch.cat((angles.cos(), angles.sin()), dim=-1).unsqueeze(1)


# --- second
def rope_table(head_dim, max_position, base):
    speeds = base ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    angles = torch.arange(max_position).float()[:, None, None] * speeds.repeat(2)
    return torch.cat([angles.cos(), angles.sin()], dim=2)
