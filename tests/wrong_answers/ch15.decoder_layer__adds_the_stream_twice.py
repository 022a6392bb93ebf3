# ruff: noqa
DIAGNOSIS = """
The stream is added once more at the end. It is in the first sum already, and so in the second.
"""


# --- first
def forward(self, positions, stream):
    between = stream + self.self_attn(positions, self.input_layernorm(stream))
    return stream + between + self.mlp(self.post_attention_layernorm(between))


# --- second
def forward(self, positions, stream):
    residual = stream
    stream = stream + self.self_attn(positions, self.input_layernorm(stream))
    stream = stream + self.mlp(self.post_attention_layernorm(stream))
    return stream + residual
