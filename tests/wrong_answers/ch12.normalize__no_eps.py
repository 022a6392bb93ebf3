# ruff: noqa
DIAGNOSIS = """
eps is missing. Small rows come out too large, and a row of zeros is divided by zero: nan, and everything after it is
nan, too.
"""


# --- first
def normalize(self, x):
    x_float = x.float()
    return (x_float * torch.rsqrt(x_float.square().mean(dim=-1, keepdim=True))).to(x.dtype) * self.weight


# --- second
def normalize(self, x):
    wide = x.to(torch.float32)
    root = torch.sqrt((wide**2).mean(-1, keepdim=True))
    return self.weight * (wide / root).to(x.dtype)
