# ruff: noqa
DIAGNOSIS = """
The squares were added up, and their number is missing: every number is too small by the root of the hidden size. It
is the mean of the squares.
"""


# --- first
def normalize(self, x):
    x_float = x.float()
    return (x_float * torch.rsqrt(x_float.square().sum(dim=-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight


# --- second
def normalize(self, x):
    wide = x.to(torch.float32)
    total = (wide * wide).sum(-1, keepdim=True)
    return self.weight * (wide / (total + self.eps).sqrt()).to(x.dtype)
