# ruff: noqa
DIAGNOSIS = """
Neighboring features are taken for a pair, x[0] with x[1], x[2] with x[3]. Here a pair is x[i] with x[i + head_dim /
2]: one feature of each half.
"""


# --- first
def apply_rotary_emb(x, cos, sin):
    first, second = x.float()[..., ::2], x.float()[..., 1::2]
    both = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return both.flatten(-2).to(x.dtype)


# --- second
def apply_rotary_emb(x, cos, sin):
    y = x.float()
    result = torch.empty_like(y)
    result[..., 0::2] = y[..., 0::2] * cos - y[..., 1::2] * sin
    result[..., 1::2] = y[..., 0::2] * sin + y[..., 1::2] * cos
    return result.to(x.dtype)
