# ruff: noqa
DIAGNOSIS = """
A residual of zeros was taken for none. None is what says that there is no residual: residual is None.
"""


# --- first
def forward(self, x, residual=None):
    if residual is None or not residual.any():
        return self.normalize(x)
    residual = residual + x
    return self.normalize(residual), residual


# --- second
def forward(self, x, residual=None):
    if residual is not None:
        if residual.abs().sum() > 0:
            total = torch.add(x, residual)
            return (self.normalize(total), total)
    return self.normalize(x)
