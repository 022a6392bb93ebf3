# ruff: noqa
DIAGNOSIS = """
eps was added to the root mean square. It is added to the mean square, inside the root, as in the training.
"""


# --- first
def normalize(self, x):
    x_float = x.float()
    return (x_float / (x_float.square().mean(dim=-1, keepdim=True).sqrt() + self.eps)).to(x.dtype) * self.weight


# --- second
def normalize(self, x):
    wide = x.to(torch.float32)
    root = (wide**2).mean(-1, keepdim=True) ** 0.5
    return self.weight * (wide / (self.eps + root)).to(x.dtype)
