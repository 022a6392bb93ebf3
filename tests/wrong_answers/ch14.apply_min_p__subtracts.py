# ruff: noqa
DIAGNOSIS = """
You subtract min_p. It is a factor between two probabilities: multiply these, or add its logarithm to a logit.
"""


# --- first
def apply_min_p(logits, min_p):
    threshold = logits.amax(dim=-1, keepdim=True) - min_p.unsqueeze(-1)
    return logits.masked_fill(logits < threshold, -torch.inf)


# --- second
def apply_min_p(logits, min_p):
    best = logits.max(-1).values
    return torch.where(logits >= (best - min_p)[:, None], logits, -torch.inf)
