# ruff: noqa
DIAGNOSIS = """
The result is right, and the ranks have met twice for it. One all-reduce is enough, and each costs time.
"""


# --- first
def forward(self, x):
    y = self.group.all_reduce(self.multiply(x, None))
    bias = torch.zeros(self.weight.shape[0], dtype=y.dtype)
    if self.group.rank == 0 and self.bias is not None:
        bias = self.bias.clone()
    return y + self.group.all_reduce(bias)


# --- second
def forward(self, x):
    y = x @ self.weight.T
    own = y.new_zeros(y.shape[-1]) if self.bias is None or self.group.rank else self.bias.clone()
    self.group.all_reduce(y)
    self.group.all_reduce(own)
    return y + own
