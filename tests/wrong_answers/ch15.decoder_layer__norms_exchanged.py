# ruff: noqa
DIAGNOSIS = """
The two norms have changed places: input_layernorm is for attention, post_attention_layernorm for the MLP.
"""


# --- first
def forward(self, positions, stream):
    stream = stream + self.self_attn(positions, self.post_attention_layernorm(stream))
    return stream + self.mlp(self.input_layernorm(stream))


# --- second
def forward(self, positions, stream):
    x = self.post_attention_layernorm(stream)
    stream = self.self_attn(positions, x) + stream
    x = self.input_layernorm(stream)
    return self.mlp(x) + stream
