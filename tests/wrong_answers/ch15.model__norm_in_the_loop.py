# ruff: noqa
DIAGNOSIS = """
The final norm stands in the loop, so that it comes after every layer. It comes once, at the end.
"""


# --- first
def forward(self, input_ids, positions):
    stream = self.embed_tokens(input_ids)
    for layer in self.layers:
        stream = self.norm(layer(positions, stream))
    return stream


# --- second
def forward(self, input_ids, positions):
    x = self.embed_tokens(input_ids)
    for layer in self.layers:
        x = layer(positions, x)
        x = self.norm(x)
    return x
