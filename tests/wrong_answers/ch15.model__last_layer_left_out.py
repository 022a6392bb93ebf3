# ruff: noqa
DIAGNOSIS = """
The last layer is left out.
"""


# --- first
def forward(self, input_ids, positions):
    stream = self.embed_tokens(input_ids)
    for i in range(len(self.layers) - 1):
        stream = self.layers[i](positions, stream)
    return self.norm(stream)


# --- second
def forward(self, input_ids, positions):
    stream = self.embed_tokens(input_ids)
    for layer in self.layers[:-1]:
        stream = layer(positions, stream)
    return self.norm(stream)
