# ruff: noqa
DIAGNOSIS = """
Attention's result is not added to the stream. What came before this layer is lost in the middle: the MLP reads only what attention
has found, and adds to that.
"""


# --- first
def forward(self, positions, stream):
    stream = self.self_attn(positions, self.input_layernorm(stream))
    return stream + self.mlp(self.post_attention_layernorm(stream))


# --- second
def forward(self, positions, stream):
    x = self.input_layernorm(stream)
    x = self.self_attn(positions, x)
    residual = x
    x = self.post_attention_layernorm(x)
    return self.mlp(x) + residual
