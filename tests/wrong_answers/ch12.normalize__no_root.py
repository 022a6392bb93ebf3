# ruff: noqa
DIAGNOSIS = """
The root is missing: it was divided by the mean square itself. A large row comes out small then, and a small one
large.
"""


# --- first
def normalize(self, x):
    x_float = x.float()
    return (x_float / (x_float.square().mean(dim=-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight


# --- second
def normalize(self, x):
    wide = x.to(torch.float32)
    factor = ((wide**2).mean(-1, keepdim=True) + self.eps).reciprocal()
    return self.weight * (factor * wide).to(x.dtype)
