# ruff: noqa
DIAGNOSIS = """
The stream is missing in both sums: what each of the two makes is added to it.
"""


# --- first
def forward(self, positions, stream):
    stream = self.self_attn(positions, self.input_layernorm(stream))
    return self.mlp(self.post_attention_layernorm(stream))


# --- second
def forward(self, positions, stream):
    hidden = self.input_layernorm(stream)
    hidden = self.self_attn(positions, hidden)
    hidden = self.post_attention_layernorm(hidden)
    hidden = self.mlp(hidden)
    return hidden
