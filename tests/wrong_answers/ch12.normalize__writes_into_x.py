# ruff: noqa
DIAGNOSIS = """
It was written into x. If x is float32 already, x.float() is no copy, and x is the residual stream, which the layer
still needs.
"""


# --- first
def normalize(self, x):
    x_float = x.float()
    x_float *= torch.rsqrt(x_float.square().mean(dim=-1, keepdim=True) + self.eps)
    return x_float.to(x.dtype) * self.weight


# --- second
def normalize(self, x):
    wide = x.to(torch.float32)
    wide.div_(torch.sqrt((wide**2).mean(-1, keepdim=True) + self.eps))
    return self.weight * wide.to(x.dtype)
