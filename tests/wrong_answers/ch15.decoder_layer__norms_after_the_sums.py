# ruff: noqa
DIAGNOSIS = """
The norms come after the sums, as in the first transformers. Here they make the copies that attention and MLP read.
"""


# --- first
def forward(self, positions, stream):
    stream = self.input_layernorm(stream + self.self_attn(positions, stream))
    return self.post_attention_layernorm(stream + self.mlp(stream))


# --- second
def forward(self, positions, stream):
    attention = self.self_attn(positions, stream)
    stream = self.input_layernorm(attention + stream)
    mlp = self.mlp(stream)
    return self.post_attention_layernorm(mlp + stream)
