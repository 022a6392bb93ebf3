# ruff: noqa
DIAGNOSIS = """
The mean was subtracted first: that is LayerNorm. RMSNorm leaves the mean where it is.
"""


# --- first
def normalize(self, x):
    x_float = x.float() - x.float().mean(dim=-1, keepdim=True)
    return (x_float * torch.rsqrt(x_float.square().mean(dim=-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight


# --- second
def normalize(self, x):
    wide = x.to(torch.float32)
    wide = wide - wide.sum(-1, keepdim=True) / x.shape[-1]
    root = torch.sqrt((wide**2).mean(-1, keepdim=True) + self.eps)
    return self.weight * (wide / root).to(x.dtype)
