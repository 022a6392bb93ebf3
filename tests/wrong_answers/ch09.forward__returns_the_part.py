# ruff: noqa
DIAGNOSIS = """
The sum is computed, and thrown away: what is returned is a copy of this rank's part from before.
"""


# --- first
def forward(self, x):
    y = self.multiply(x, self.bias if self.group.rank == 0 else None)
    self.group.all_reduce(y.clone())
    return y


# --- second
def forward(self, x):
    bias = None if self.group.rank else self.bias
    y = self.multiply(x, bias)
    total = y + 0
    self.group.all_reduce(total)
    return y
