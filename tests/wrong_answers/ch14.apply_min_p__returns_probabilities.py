# ruff: noqa
DIAGNOSIS = """
You return probabilities. What comes in are logits, and logits have to come out: the noise is added to these.
"""


# --- first
def apply_min_p(logits, min_p):
    p = logits.softmax(dim=-1)
    return p.masked_fill(p < min_p.unsqueeze(-1) * p.amax(dim=-1, keepdim=True), 0.0)


# --- second
def apply_min_p(logits, min_p):
    p = torch.exp(logits - logits.logsumexp(-1, keepdim=True))
    return p * (p >= p.max(-1).values[:, None] * min_p[:, None])
