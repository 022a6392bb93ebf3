# ruff: noqa
DIAGNOSIS = """
Attention and MLP read the same stream, side by side. The MLP comes second, and reads what attention has added, too.
"""


# --- first
def forward(self, positions, stream):
    attention = self.self_attn(positions, self.input_layernorm(stream))
    return stream + attention + self.mlp(self.post_attention_layernorm(stream))


# --- second
def forward(self, positions, stream):
    read = self.post_attention_layernorm(stream)
    result = stream + self.self_attn(positions, self.input_layernorm(stream))
    return result + self.mlp(read)
