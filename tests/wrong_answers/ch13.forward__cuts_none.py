# ruff: noqa
DIAGNOSIS = """
The result of gather is sliced on all ranks. On those other than rank 0 it is None.
"""


# --- first
def forward(self, hidden_states):
    ends = get_context().cu_seqlens_q
    if ends is not None:
        hidden_states = hidden_states[ends[1:] - 1]
    return self.group.gather(F.linear(hidden_states, self.weight))[:, : self.num_embeddings]


# --- second
def forward(self, hidden_states):
    context = get_context()
    if context.is_prefill:
        hidden_states = hidden_states[context.cu_seqlens_q[1:].sub(1)]
    logits = self.group.gather(hidden_states @ self.weight.T)
    return logits[..., : self.num_embeddings]
