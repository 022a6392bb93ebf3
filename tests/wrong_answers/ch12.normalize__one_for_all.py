# ruff: noqa
DIAGNOSIS = """
One mean was taken over everything, so that a large row makes all others small. Each row has its own: mean(dim=-1,
keepdim=True).
"""


# --- first
def normalize(self, x):
    x_float = x.float()
    return (x_float * torch.rsqrt(x_float.square().mean() + self.eps)).to(x.dtype) * self.weight


# --- second
def normalize(self, x):
    wide = x.to(torch.float32)
    squares = (wide**2).sum() / x.numel()
    return self.weight * (wide / (squares + self.eps).sqrt()).to(x.dtype)
