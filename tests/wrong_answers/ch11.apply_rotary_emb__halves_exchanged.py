# ruff: noqa
DIAGNOSIS = """
Both halves are right and in each other's place: the one with the minus comes first.
"""


# --- first
def apply_rotary_emb(x, cos, sin):
    x1, x2 = x.float().chunk(2, dim=-1)
    return torch.cat((x2 * cos + x1 * sin, x1 * cos - x2 * sin), dim=-1).to(x.dtype)


# --- second
def apply_rotary_emb(x, cos, sin):
    half = x.shape[-1] // 2
    a, b = x[..., :half].float(), x[..., half:].float()
    out = torch.empty(x.shape)
    out[..., half:] = a * cos - b * sin
    out[..., :half] = a * sin + b * cos
    return out.to(x.dtype)
