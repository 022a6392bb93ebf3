# ruff: noqa
DIAGNOSIS = """
The stream is added to what each layer returns. A layer returns the stream, with its own part in it.
"""


# --- first
def forward(self, input_ids, positions):
    stream = self.embed_tokens(input_ids)
    for layer in self.layers:
        stream = stream + layer(positions, stream)
    return self.norm(stream)


# --- second
def forward(self, input_ids, positions):
    stream = self.embed_tokens(input_ids)
    for layer in self.layers:
        residual = stream
        stream = layer(positions, stream)
        stream = stream + residual
    return self.norm(stream)
