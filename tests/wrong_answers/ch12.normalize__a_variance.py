# ruff: noqa
DIAGNOSIS = """
It was divided by the root of a variance, in which the mean is subtracted. RMSNorm takes the squares of the numbers as
they are.
"""


# --- first
def normalize(self, x):
    x_float = x.float()
    variance = x_float.var(dim=-1, keepdim=True, unbiased=False)
    return (x_float * torch.rsqrt(variance + self.eps)).to(x.dtype) * self.weight


# --- second
def normalize(self, x):
    wide = x.to(torch.float32)
    mean = wide.mean(-1, keepdim=True)
    root = torch.sqrt(((wide - mean) ** 2).mean(-1, keepdim=True) + self.eps)
    return self.weight * (wide / root).to(x.dtype)
