# ruff: noqa
DIAGNOSIS = """
Each layer reads the embeddings, so that only the last one has an effect. It should read what the layer before it has made.
"""


# --- first
def forward(self, input_ids, positions):
    embeddings = self.embed_tokens(input_ids)
    for layer in self.layers:
        stream = layer(positions, embeddings)
    return self.norm(stream)


# --- second
def forward(self, input_ids, positions):
    x = self.embed_tokens(input_ids)
    found = [layer(positions, x) for layer in self.layers]
    return self.norm(found[-1])
