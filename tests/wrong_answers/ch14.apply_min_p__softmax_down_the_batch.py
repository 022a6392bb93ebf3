# ruff: noqa
DIAGNOSIS = """
The softmax runs down the batch: it says which sequence likes a token best. Each row has to add up to 1.
"""


# --- first
def apply_min_p(logits, min_p):
    p = logits.softmax(dim=0)
    return logits.masked_fill(p < min_p.unsqueeze(-1) * p.amax(dim=0, keepdim=True), -torch.inf)


# --- second
def apply_min_p(logits, min_p):
    threshold = logits.max(0).values + min_p.log()[:, None]
    return torch.where(logits < threshold, -torch.inf, logits)
