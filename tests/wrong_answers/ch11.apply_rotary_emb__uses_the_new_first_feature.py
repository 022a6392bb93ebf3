# ruff: noqa
DIAGNOSIS = """
The second feature is computed from the new first one. Both need the old pair: keep it until both new features are
there.
"""


# --- first
def apply_rotary_emb(x, cos, sin):
    x1, x2 = x.float().chunk(2, dim=-1)
    x1 = x1 * cos - x2 * sin
    x2 = x2 * cos + x1 * sin
    return torch.cat((x1, x2), dim=-1).to(x.dtype)


# --- second
def apply_rotary_emb(x, cos, sin):
    half = x.shape[-1] // 2
    y = x.float().clone()
    y[..., :half] = y[..., :half] * cos - y[..., half:] * sin
    y[..., half:] = y[..., half:] * cos + y[..., :half] * sin
    return y.to(x.dtype)
