# ruff: noqa
DIAGNOSIS = """
The two have changed places: first come the normalized rows, which the layer reads, then the sum.
"""


# --- first
def forward(self, x, residual=None):
    if residual is None:
        return self.normalize(x)
    residual = residual + x
    return residual, self.normalize(residual)


# --- second
def forward(self, x, residual=None):
    if residual is not None:
        total = torch.add(x, residual)
        return (total, self.normalize(total))
    return self.normalize(x)
