# ruff: noqa
DIAGNOSIS = """
What comes back is float32, whatever came in. It has the dtype of x: in a bfloat16 model, keys of float32 do not fit
into the cache.
"""


# --- first
def apply_rotary_emb(x, cos, sin):
    x1, x2 = x.float().chunk(2, dim=-1)
    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)


# --- second
def apply_rotary_emb(x, cos, sin):
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=2)
