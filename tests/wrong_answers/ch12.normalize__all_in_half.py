# ruff: noqa
DIAGNOSIS = """
x was not brought to float32. In float16 the squares of numbers above 255 are inf, and in bfloat16 the mean has two or
three digits.
"""


# --- first
def normalize(self, x):
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + self.eps) * self.weight


# --- second
def normalize(self, x):
    squares = x * x
    factor = torch.rsqrt(squares.mean(-1, keepdim=True) + self.eps)
    return (x * factor) * self.weight
