# ruff: noqa
DIAGNOSIS = """
The normalized copies take the place of the stream, and the sums are made with them. The stream itself goes on as it is.
"""


# --- first
def forward(self, positions, stream):
    stream = self.input_layernorm(stream)
    stream = stream + self.self_attn(positions, stream)
    stream = self.post_attention_layernorm(stream)
    return stream + self.mlp(stream)


# --- second
def forward(self, positions, stream):
    x = self.input_layernorm(stream)
    x = self.post_attention_layernorm(x + self.self_attn(positions, x))
    return self.mlp(x) + x
