# ruff: noqa
DIAGNOSIS = """
The weight is missing. A row with a root mean square of one is multiplied by self.weight, a learned number for each
feature.
"""


# --- first
def normalize(self, x):
    x_float = x.float()
    return (x_float * torch.rsqrt(x_float.square().mean(dim=-1, keepdim=True) + self.eps)).to(x.dtype)


# --- second
def normalize(self, x):
    wide = x.to(torch.float32)
    root = torch.sqrt((wide**2).mean(-1, keepdim=True) + self.eps)
    return (wide / root).to(x.dtype)
