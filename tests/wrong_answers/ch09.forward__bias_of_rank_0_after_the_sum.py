# ruff: noqa
DIAGNOSIS = """
Only rank 0 adds the bias, and it does so after the sum: the other ranks have a result without it.
"""


# --- first
def forward(self, x):
    y = self.group.all_reduce(self.multiply(x, None))
    return y + self.bias if self.group.rank == 0 and self.bias is not None else y


# --- second
def forward(self, x):
    y = self.group.all_reduce(x @ self.weight.T)
    if not self.group.rank:
        y = y if self.bias is None else y + self.bias
    return y
