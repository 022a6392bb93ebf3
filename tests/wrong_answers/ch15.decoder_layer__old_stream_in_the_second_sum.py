# ruff: noqa
DIAGNOSIS = """
The MLP's result is added to the stream from before attention, so what attention has found is lost.
"""


# --- first
def forward(self, positions, stream):
    between = stream + self.self_attn(positions, self.input_layernorm(stream))
    return stream + self.mlp(self.post_attention_layernorm(between))


# --- second
def forward(self, positions, stream):
    residual = stream
    stream = self.self_attn(positions, self.input_layernorm(stream)) + residual
    stream = self.mlp(self.post_attention_layernorm(stream))
    return stream + residual
