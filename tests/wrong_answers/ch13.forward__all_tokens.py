# ruff: noqa
DIAGNOSIS = """
The logits of all tokens are computed. Only the last one of each sequence is sampled from.
"""


# --- first
def forward(self, hidden_states):
    logits = self.group.gather(F.linear(hidden_states, self.weight))
    return None if logits is None else logits[:, : self.num_embeddings]


# --- second
def forward(self, hidden_states):
    context = get_context()
    logits = self.group.gather(hidden_states @ self.weight.T)
    if logits is not None:
        return logits[:, : self.num_embeddings]
