# ruff: noqa
DIAGNOSIS = """
The first layer is used for all; each layer has weights of its own.
"""


# --- first
def forward(self, input_ids, positions):
    stream = self.embed_tokens(input_ids)
    for _ in self.layers:
        stream = self.layers[0](positions, stream)
    return self.norm(stream)


# --- second
def forward(self, input_ids, positions):
    stream = self.embed_tokens(input_ids)
    first, *others = self.layers
    stream = first(positions, stream)
    for layer in others:
        stream = first(positions, stream)
    return self.norm(stream)
