# ruff: noqa
DIAGNOSIS = """
The bias is missing.
"""


# --- first
def forward(self, x):
    return self.group.all_reduce(self.multiply(x, None))


# --- second
def forward(self, x):
    return self.group.all_reduce(x @ self.weight.T)
