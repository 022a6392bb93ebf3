# ruff: noqa
DIAGNOSIS = """
Nothing comes back: a return is missing.
"""


# --- first
def forward(self, x):
    y = self.multiply(x, self.bias if self.group.rank == 0 else None)
    self.group.all_reduce(y)


# --- second
def forward(self, x):
    bias = self.bias if self.group.rank == 0 else None
    _ = self.group.all_reduce(self.multiply(x, bias))
