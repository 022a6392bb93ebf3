# ruff: noqa
DIAGNOSIS = """
Without a residual a tuple came back, too. Then the normalized rows come back alone.
"""


# --- first
def forward(self, x, residual=None):
    if residual is None:
        return self.normalize(x), x
    residual = residual + x
    return self.normalize(residual), residual


# --- second
def forward(self, x, residual=None):
    total = x if residual is None else torch.add(x, residual)
    return (self.normalize(total), total)
