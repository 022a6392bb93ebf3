# ruff: noqa
DIAGNOSIS = """
Only rank 0 calls the all-reduce. It waits for the others for ever.
"""


# --- first
def forward(self, x):
    y = self.multiply(x, self.bias if self.group.rank == 0 else None)
    return self.group.all_reduce(y) if self.group.rank == 0 else y


# --- second
def forward(self, x):
    if self.group.rank:
        return self.multiply(x, None)
    return self.group.all_reduce(self.multiply(x, self.bias))
