# ruff: noqa
DIAGNOSIS = """
The sum is divided by the number of ranks. The parts are summands, no estimates of the same thing.
"""


# --- first
def forward(self, x):
    y = self.group.all_reduce(self.multiply(x, None)) / self.group.size
    return y if self.bias is None else y + self.bias


# --- second
def forward(self, x):
    y = self.group.all_reduce(x @ self.weight.T).div(self.group.size)
    if self.bias is not None:
        y += self.bias
    return y
