# ruff: noqa
DIAGNOSIS = """
You take min_p of the largest logit. Logits are no probabilities: a share of a probability is a difference of
logits.
"""


# --- first
def apply_min_p(logits, min_p):
    threshold = min_p.unsqueeze(-1) * logits.amax(dim=-1, keepdim=True)
    return logits.masked_fill(logits < threshold, -torch.inf)


# --- second
def apply_min_p(logits, min_p):
    best = logits.max(dim=1).values
    return torch.where(logits >= (best * min_p)[:, None], logits, -torch.inf)
