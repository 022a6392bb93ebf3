# ruff: noqa
DIAGNOSIS = """
Every feature is multiplied by the cosine of its angle, and that is all. Arrows get shorter and do not turn: the other
feature of the pair, times the sine, is missing.
"""


# --- first
def apply_rotary_emb(x, cos, sin):
    x1, x2 = x.float().chunk(2, dim=-1)
    return torch.cat((x1 * cos, x2 * cos), dim=-1).to(x.dtype)


# --- second
def apply_rotary_emb(x, cos, sin):
    return (x.float() * torch.cat((cos, cos), dim=-1)).to(x.dtype)
