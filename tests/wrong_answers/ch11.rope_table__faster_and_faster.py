# ruff: noqa
DIAGNOSIS = """
The minus in the exponent is missing, so each pair turns faster than the one before. Pair 0 is the fastest: the others
turn by 1 / base ** (2 i / head_dim).
"""


# --- first
def rope_table(head_dim, max_position, base):
    speeds = base ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angles = torch.outer(torch.arange(max_position, dtype=torch.float32), speeds)
    return torch.cat((angles.cos(), angles.sin()), dim=-1).unsqueeze(1)


# --- second
def rope_table(head_dim, max_position, base):
    exponents = torch.arange(0, head_dim, 2).double() / head_dim
    positions = torch.arange(max_position).double()[:, None, None]
    angles = positions * torch.pow(torch.tensor(base, dtype=torch.float64), exponents)
    return torch.cat((torch.cos(angles), torch.sin(angles)), dim=2).float()
