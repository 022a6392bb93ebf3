# ruff: noqa
DIAGNOSIS = """
Each rank returns the logits of its own tokens. They have to be gathered, side by side on rank 0.
"""


# --- first
def forward(self, hidden_states):
    ends = get_context().cu_seqlens_q
    if ends is not None:
        hidden_states = hidden_states[ends[1:] - 1]
    return F.linear(hidden_states, self.weight)[:, : self.num_embeddings]


# --- second
def forward(self, hidden_states):
    context = get_context()
    if context.is_prefill:
        hidden_states = hidden_states[context.cu_seqlens_q[1:].sub(1)]
    logits = hidden_states @ self.weight.T
    return logits[..., : self.num_embeddings]
