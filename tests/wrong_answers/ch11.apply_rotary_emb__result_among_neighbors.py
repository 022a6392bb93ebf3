# ruff: noqa
DIAGNOSIS = """
The pairs are right, and turned right, but the result is put into neighboring features. The first features of all
pairs come first, then all second ones: torch.cat, not stack.
"""


# --- first
def apply_rotary_emb(x, cos, sin):
    x1, x2 = x.float().chunk(2, dim=-1)
    both = torch.stack((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)
    return both.reshape(x.shape).to(x.dtype)


# --- second
def apply_rotary_emb(x, cos, sin):
    x1, x2 = x.float().chunk(2, dim=-1)
    result = torch.empty(x.shape)
    result[..., ::2], result[..., 1::2] = x1 * cos - x2 * sin, x2 * cos + x1 * sin
    return result.to(x.dtype)
