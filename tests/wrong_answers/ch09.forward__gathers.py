# ruff: noqa
DIAGNOSIS = """
The parts are put side by side on rank 0. Each is as long as the result, and they have to be added up.
"""


# --- first
def forward(self, x):
    return self.group.gather(self.multiply(x, self.bias if self.group.rank == 0 else None))


# --- second
def forward(self, x):
    y = self.multiply(x, None)
    if self.bias is not None and self.group.rank == 0:
        y = y + self.bias
    return self.group.gather(y)
