# ruff: noqa
DIAGNOSIS = """
The result is right, but the logits of all tokens were computed for it. The rows are chosen before the product.
"""


# --- first
def forward(self, hidden_states):
    logits = F.linear(hidden_states, self.weight)
    ends = get_context().cu_seqlens_q
    if ends is not None:
        logits = logits[ends[1:] - 1]
    logits = self.group.gather(logits)
    return None if logits is None else logits[:, : self.num_embeddings]


# --- second
def forward(self, hidden_states):
    context, logits = get_context(), hidden_states @ self.weight.T
    if context.is_prefill:
        logits = logits[context.cu_seqlens_q[1:].sub(1)]
    logits = self.group.gather(logits)
    if logits is not None:
        return logits[:, : self.num_embeddings]
