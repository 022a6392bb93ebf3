# ruff: noqa
DIAGNOSIS = """
The mean runs over the rows, for each feature. Then a token's numbers depend on who stands beside it in the step. Each
row has a mean of its own: dim=-1.
"""


# --- first
def normalize(self, x):
    x_float = x.float()
    return (x_float * torch.rsqrt(x_float.square().mean(dim=0, keepdim=True) + self.eps)).to(x.dtype) * self.weight


# --- second
def normalize(self, x):
    wide = x.to(torch.float32)
    squares = (wide**2).sum(0) / x.shape[0]
    return self.weight * (wide / (squares + self.eps).sqrt()).to(x.dtype)
