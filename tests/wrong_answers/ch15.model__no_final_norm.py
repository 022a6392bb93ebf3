# ruff: noqa
DIAGNOSIS = """
The stream comes back without the final norm. The head reads what self.norm returns.
"""


# --- first
def forward(self, input_ids, positions):
    stream = self.embed_tokens(input_ids)
    for layer in self.layers:
        stream = layer(positions, stream)
    return stream


# --- second
def forward(self, input_ids, positions):
    x, n = self.embed_tokens(input_ids), 0
    while n < len(self.layers):
        x = self.layers[n](positions, x)
        n += 1
    return x
