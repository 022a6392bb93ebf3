# ruff: noqa
DIAGNOSIS = """
Every rank adds the bias before the sum, so it counts as often as there are ranks.
"""


# --- first
def forward(self, x):
    return self.group.all_reduce(self.multiply(x, self.bias))


# --- second
def forward(self, x):
    y = x @ self.weight.T
    y = y if self.bias is None else y + self.bias
    return self.group.all_reduce(y)
