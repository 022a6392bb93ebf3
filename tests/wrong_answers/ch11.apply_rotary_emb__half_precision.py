# ruff: noqa
DIAGNOSIS = """
It is computed in the dtype of x. bfloat16 keeps three digits, and where two products nearly cancel, nothing right is
left: x has to be brought to float32 first, not cos and sin to bfloat16.
"""


# --- first
def apply_rotary_emb(x, cos, sin):
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)


# --- second
def apply_rotary_emb(x, cos, sin):
    half = x.shape[-1] // 2
    c, s = cos.type_as(x), sin.type_as(x)
    out = torch.empty_like(x)
    out[..., :half] = x[..., :half] * c - x[..., half:] * s
    out[..., half:] = x[..., half:] * c + x[..., :half] * s
    return out
