# ruff: noqa
DIAGNOSIS = """
With a residual only the normalized rows came back. The sum has to come back, too: it is the residual of the next
norm.
"""


# --- first
def forward(self, x, residual=None):
    if residual is None:
        return self.normalize(x)
    return self.normalize(residual + x)


# --- second
def forward(self, x, residual=None):
    total = x if residual is None else torch.add(x, residual)
    return self.normalize(total)
