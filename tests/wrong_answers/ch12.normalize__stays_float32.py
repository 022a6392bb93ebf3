# ruff: noqa
DIAGNOSIS = """
What comes back is float32, whatever came in. In a bfloat16 model the next matrix does not take it.
"""


# --- first
def normalize(self, x):
    x_float = x.float()
    return x_float * torch.rsqrt(x_float.square().mean(dim=-1, keepdim=True) + self.eps) * self.weight


# --- second
def normalize(self, x):
    wide = x.to(torch.float32)
    root = torch.sqrt((wide**2).mean(-1, keepdim=True) + self.eps)
    return wide / root * self.weight.float()
