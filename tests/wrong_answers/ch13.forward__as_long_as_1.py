# ruff: noqa
DIAGNOSIS = """
The rows of the table are made as long as 1. A logit is the plain dot product: how long a row is belongs to the model.
"""


# --- first
def forward(self, hidden_states):
    ends = get_context().cu_seqlens_q
    if ends is not None:
        hidden_states = hidden_states[ends[1:] - 1]
    logits = self.group.gather(F.linear(hidden_states, F.normalize(self.weight, dim=-1)))
    return None if logits is None else logits[:, : self.num_embeddings]


# --- second
def forward(self, hidden_states):
    context = get_context()
    if context.is_prefill:
        hidden_states = hidden_states[context.cu_seqlens_q[1:].sub(1)]
    unit = self.weight / self.weight.norm(dim=-1, keepdim=True).clamp_min(1e-12)
    logits = self.group.gather(hidden_states @ unit.T)
    if logits is not None:
        return logits[:, : self.num_embeddings]
