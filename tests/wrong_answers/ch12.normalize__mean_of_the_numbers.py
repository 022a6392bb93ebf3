# ruff: noqa
DIAGNOSIS = """
The mean of the numbers was taken, not that of their squares. Numbers above and below zero cancel in it, and it can
even be negative: then its root is nan.
"""


# --- first
def normalize(self, x):
    x_float = x.float()
    return (x_float * torch.rsqrt(x_float.mean(dim=-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight


# --- second
def normalize(self, x):
    wide = x.to(torch.float32)
    mean = wide.sum(-1, keepdim=True) / x.shape[-1]
    return self.weight * (wide / (mean + self.eps).sqrt()).to(x.dtype)
