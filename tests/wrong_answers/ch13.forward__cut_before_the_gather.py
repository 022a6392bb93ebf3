# ruff: noqa
DIAGNOSIS = """
The padding is cut before the gather. There every part has to be num_embeddings_per_rank wide; the padding comes off the
whole, on rank 0.
"""


# --- first
def forward(self, hidden_states):
    ends = get_context().cu_seqlens_q
    if ends is not None:
        hidden_states = hidden_states[ends[1:] - 1]
    own = max(0, min(self.vocab_end, self.num_embeddings) - self.vocab_start)
    return self.group.gather(F.linear(hidden_states, self.weight)[:, :own].contiguous())


# --- second
def forward(self, hidden_states):
    context = get_context()
    if context.is_prefill:
        hidden_states = hidden_states[context.cu_seqlens_q[1:].sub(1)]
    real = self.weight[: max(0, self.num_embeddings - self.vocab_start)]
    return self.group.gather(hidden_states @ real.T)
