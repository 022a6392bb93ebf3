# ruff: noqa
DIAGNOSIS = """
The normalized rows came back twice. The stream goes on as it is, so the second thing is the sum before the norm.
"""


# --- first
def forward(self, x, residual=None):
    if residual is None:
        return self.normalize(x)
    residual = self.normalize(residual + x)
    return residual, residual


# --- second
def forward(self, x, residual=None):
    if residual is not None:
        total = self.normalize(torch.add(x, residual))
        return (total, total)
    return self.normalize(x)
