# ruff: noqa
DIAGNOSIS = """
The padding is still there: where the vocabulary cannot be divided, there are logits of tokens that do not exist. It is
cut from the whole, behind the gather; a part alone is never wider than the vocabulary.
"""


# --- first
def forward(self, hidden_states):
    ends = get_context().cu_seqlens_q
    if ends is not None:
        hidden_states = hidden_states[ends[1:] - 1]
    return self.group.gather(F.linear(hidden_states, self.weight))


# --- second
def forward(self, hidden_states):
    context = get_context()
    if context.is_prefill:
        hidden_states = hidden_states[context.cu_seqlens_q[1:].sub(1)]
    return self.group.gather(hidden_states @ self.weight.T)
