# ruff: noqa
DIAGNOSIS = """
It takes for granted that there is a bias. Most layers have none: then self.bias is None.
"""


# --- first
def forward(self, x):
    y = self.group.all_reduce(self.multiply(x, None))
    return y + self.bias


# --- second
def forward(self, x):
    y = self.group.all_reduce(x @ self.weight.T)
    return y.add(self.bias)
