# ruff: noqa
DIAGNOSIS = """
The embeddings are scaled by the square root of the hidden size. Other families do that (Gemma); this one does not.
"""


# --- first
def forward(self, input_ids, positions):
    stream = self.embed_tokens(input_ids)
    stream = stream * stream.shape[-1] ** 0.5
    for layer in self.layers:
        stream = layer(positions, stream)
    return self.norm(stream)


# --- second
def forward(self, input_ids, positions):
    x = self.embed_tokens(input_ids)
    x = x * len(self.norm.weight) ** 0.5
    for n in range(len(self.layers)):
        x = self.layers[n](positions, x)
    return self.norm(x)
