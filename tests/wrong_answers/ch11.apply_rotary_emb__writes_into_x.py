# ruff: noqa
DIAGNOSIS = """
The result is written into x itself. x belongs to the caller and stays as it is; the result needs a tensor of its own.
"""


# --- first
def apply_rotary_emb(x, cos, sin):
    x1, x2 = x.float().chunk(2, dim=-1)
    x.copy_(torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1))
    return x


# --- second
def apply_rotary_emb(x, cos, sin):
    half = x.shape[-1] // 2
    a, b = x[..., :half].float().clone(), x[..., half:].float().clone()
    x[..., :half] = (a * cos - b * sin).to(x.dtype)
    x[..., half:] = (b * cos + a * sin).to(x.dtype)
    return x
