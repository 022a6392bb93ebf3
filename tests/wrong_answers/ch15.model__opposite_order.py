# ruff: noqa
DIAGNOSIS = """
The layers come in the opposite order.
"""


# --- first
def forward(self, input_ids, positions):
    stream = self.embed_tokens(input_ids)
    for layer in reversed(self.layers):
        stream = layer(positions, stream)
    return self.norm(stream)


# --- second
def forward(self, input_ids, positions):
    stream = self.embed_tokens(input_ids)
    for n in range(len(self.layers) - 1, -1, -1):
        stream = self.layers[n](positions, stream)
    return self.norm(stream)
