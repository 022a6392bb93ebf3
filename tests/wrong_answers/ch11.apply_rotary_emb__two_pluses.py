# ruff: noqa
DIAGNOSIS = """
Both formulas have a plus. That is no rotation: an arrow would change its length. The minus belongs to the first:
first * cos - second * sin.
"""


# --- first
def apply_rotary_emb(x, cos, sin):
    x1, x2 = x.float().chunk(2, dim=-1)
    return torch.cat((x1 * cos + x2 * sin, x2 * cos + x1 * sin), dim=-1).to(x.dtype)


# --- second
def apply_rotary_emb(x, cos, sin):
    half = x.shape[-1] // 2
    other = x.float().roll(half, dims=-1)
    return (x.float() * cos.repeat(1, 1, 2) + other * sin.repeat(1, 1, 2)).to(x.dtype)
