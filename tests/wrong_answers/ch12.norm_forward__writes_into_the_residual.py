# ruff: noqa
DIAGNOSIS = """
+= writes into the residual that came in. Whoever called still holds it, for example as the stream before this layer.
"""


# --- first
def forward(self, x, residual=None):
    if residual is None:
        return self.normalize(x)
    residual += x
    return self.normalize(residual), residual


# --- second
def forward(self, x, residual=None):
    if residual is not None:
        residual.add_(x)
        return (self.normalize(residual), residual)
    return self.normalize(x)
