# ruff: noqa
DIAGNOSIS = """
x was normalized and then added. First comes the sum, and then the norm of it.
"""


# --- first
def forward(self, x, residual=None):
    if residual is None:
        return self.normalize(x)
    residual = residual + self.normalize(x)
    return self.normalize(residual), residual


# --- second
def forward(self, x, residual=None):
    if residual is not None:
        total = torch.add(self.normalize(x), residual)
        return (self.normalize(total), total)
    return self.normalize(x)
