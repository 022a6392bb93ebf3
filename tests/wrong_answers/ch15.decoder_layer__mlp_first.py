# ruff: noqa
DIAGNOSIS = """
The MLP comes first and attention second; it is the other way round.
"""


# --- first
def forward(self, positions, stream):
    stream = stream + self.mlp(self.post_attention_layernorm(stream))
    return stream + self.self_attn(positions, self.input_layernorm(stream))


# --- second
def forward(self, positions, stream):
    x = self.mlp(self.post_attention_layernorm(stream)) + stream
    y = self.self_attn(positions, self.input_layernorm(x))
    return y + x
