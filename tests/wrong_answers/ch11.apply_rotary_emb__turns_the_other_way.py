# ruff: noqa
DIAGNOSIS = """
The arrows turn clockwise, by the opposite angle. Counterclockwise, the first feature is first * cos - second * sin,
and the second second * cos + first * sin.
"""


# --- first
def apply_rotary_emb(x, cos, sin):
    x1, x2 = x.float().chunk(2, dim=-1)
    return torch.cat((x1 * cos + x2 * sin, x2 * cos - x1 * sin), dim=-1).to(x.dtype)


# --- second
def apply_rotary_emb(x, cos, sin):
    half = x.shape[-1] // 2
    a, b = x[..., :half].float(), x[..., half:].float()
    turned = torch.cat((b, -a), dim=-1)
    return (x.float() * torch.cat((cos, cos), -1) + turned * torch.cat((sin, sin), -1)).to(x.dtype)
