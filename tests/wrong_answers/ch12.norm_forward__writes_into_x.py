# ruff: noqa
DIAGNOSIS = """
The sum was written into x, which came in and stays as it is. The sum is a tensor of its own.
"""


# --- first
def forward(self, x, residual=None):
    if residual is None:
        return self.normalize(x)
    x += residual
    return self.normalize(x), x


# --- second
def forward(self, x, residual=None):
    if residual is not None:
        x.add_(residual)
        return (self.normalize(x), x)
    return self.normalize(x)
