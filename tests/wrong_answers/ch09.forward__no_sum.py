# ruff: noqa
DIAGNOSIS = """
The parts are not added up: each rank returns its own.
"""


# --- first
def forward(self, x):
    return self.multiply(x, self.bias if self.group.rank == 0 else None)


# --- second
def forward(self, x):
    y = self.multiply(x, None)
    if self.group.rank == 0 and self.bias is not None:
        y = y + self.bias
    return y
