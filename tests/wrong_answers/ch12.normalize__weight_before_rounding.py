# ruff: noqa
DIAGNOSIS = """
The weight was multiplied in float32, and the result rounded once. The scaled row is rounded to the dtype of x first,
and then multiplied: the training did it like that, and in bfloat16 many numbers have another last digit.
"""


# --- first
def normalize(self, x):
    x_float = x.float()
    return (x_float * torch.rsqrt(x_float.square().mean(dim=-1, keepdim=True) + self.eps) * self.weight).to(x.dtype)


# --- second
def normalize(self, x):
    wide = x.to(torch.float32)
    root = torch.sqrt((wide**2).mean(-1, keepdim=True) + self.eps)
    return (wide / root * self.weight.float()).to(x.dtype)
