# ruff: noqa
DIAGNOSIS = """
A decode step has no cu_seqlens_q: it is None, and each row is a sequence's only token.
"""


# --- first
def forward(self, hidden_states):
    ends = get_context().cu_seqlens_q
    logits = self.group.gather(F.linear(hidden_states[ends[1:] - 1], self.weight))
    return None if logits is None else logits[:, : self.num_embeddings]


# --- second
def forward(self, hidden_states):
    context = get_context()
    rows = hidden_states[context.cu_seqlens_q[1:] - 1]
    logits = self.group.gather(rows @ self.weight.T)
    if logits is not None:
        return logits[:, : self.num_embeddings]
