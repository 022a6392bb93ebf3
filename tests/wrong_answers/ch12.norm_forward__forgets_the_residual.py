# ruff: noqa
DIAGNOSIS = """
x alone was normalized. What the layer reads is the whole stream: the sum of x and the residual.
"""


# --- first
def forward(self, x, residual=None):
    if residual is None:
        return self.normalize(x)
    return self.normalize(x), residual + x


# --- second
def forward(self, x, residual=None):
    if residual is not None:
        total = torch.add(x, residual)
        return (self.normalize(x), total)
    return self.normalize(x)
