# ruff: noqa
DIAGNOSIS = """
x was added twice. Once is enough: the residual is the stream without it.
"""


# --- first
def forward(self, x, residual=None):
    if residual is None:
        return self.normalize(x)
    residual = residual + 2 * x
    return self.normalize(residual), residual


# --- second
def forward(self, x, residual=None):
    if residual is not None:
        total = torch.add(residual, x, alpha=2)
        return (self.normalize(total), total)
    return self.normalize(x)
