# ruff: noqa
DIAGNOSIS = """
There is no norm: both read the stream as it is, and it grows from layer to layer.
"""


# --- first
def forward(self, positions, stream):
    stream = stream + self.self_attn(positions, stream)
    return stream + self.mlp(stream)


# --- second
def forward(self, positions, stream):
    result = self.self_attn(positions, stream) + stream
    result = result + self.mlp(result)
    return result
