# ruff: noqa
DIAGNOSIS = """
Only the first half changes, the second is as it was. Both features of a pair turn.
"""


# --- first
def apply_rotary_emb(x, cos, sin):
    x1, x2 = x.float().chunk(2, dim=-1)
    return torch.cat((x1 * cos - x2 * sin, x2), dim=-1).to(x.dtype)


# --- second
def apply_rotary_emb(x, cos, sin):
    half = x.shape[-1] // 2
    result = x.clone()
    result[..., :half] = (x[..., :half].float() * cos - x[..., half:].float() * sin).to(x.dtype)
    return result
