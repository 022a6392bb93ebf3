# ruff: noqa
DIAGNOSIS = """
The parts are not added up, and every rank adds the bias to its own.
"""


# --- first
def forward(self, x):
    return self.multiply(x, self.bias)


# --- second
def forward(self, x):
    y = x @ self.weight.T
    return y if self.bias is None else y + self.bias
