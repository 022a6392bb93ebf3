# ruff: noqa
DIAGNOSIS = """
cos and sin have changed places. At position 0 the angle is 0, with cosine 1 and sine 0, and a pair has to stay as it
is.
"""


# --- first
def apply_rotary_emb(x, cos, sin):
    x1, x2 = x.float().chunk(2, dim=-1)
    return torch.cat((x1 * sin - x2 * cos, x2 * sin + x1 * cos), dim=-1).to(x.dtype)


# --- second
def apply_rotary_emb(x, cos, sin):
    sin, cos = cos, sin
    half = x.shape[-1] // 2
    a, b = x[..., :half].float(), x[..., half:].float()
    result = torch.zeros(x.shape)
    result[..., :half] = a * cos - b * sin
    result[..., half:] = b * cos + a * sin
    return result.to(x.dtype)
