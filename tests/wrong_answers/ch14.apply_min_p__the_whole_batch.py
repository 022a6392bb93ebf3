# ruff: noqa
DIAGNOSIS = """
The largest probability is that of the whole batch. Every row has its own favorite, and its own limit.
"""


# --- first
def apply_min_p(logits, min_p):
    threshold = logits.max() + min_p.log().unsqueeze(-1)
    return logits.masked_fill(logits < threshold, -torch.inf)


# --- second
def apply_min_p(logits, min_p):
    weights = (logits - torch.max(logits)).exp()
    return torch.where(weights < min_p[:, None], -torch.inf, logits)
