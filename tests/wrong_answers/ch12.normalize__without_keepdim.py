# ruff: noqa
DIAGNOSIS = """
keepdim=True is missing, so the factors of the rows lie along the features. The shapes do not fit, or, with as many
rows as features, each column gets another row's factor.
"""


# --- first
def normalize(self, x):
    x_float = x.float()
    return (x_float * torch.rsqrt(x_float.square().mean(dim=-1) + self.eps)).to(x.dtype) * self.weight


# --- second
def normalize(self, x):
    wide = x.to(torch.float32)
    root = torch.sqrt((wide**2).sum(-1) / x.shape[-1] + self.eps)
    return self.weight * (wide / root).to(x.dtype)
