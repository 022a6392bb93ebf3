# ruff: noqa
DIAGNOSIS = """
The comparison is turned around: the likely tokens go, and the unlikely ones stay.
"""


# --- first
def apply_min_p(logits, min_p):
    p = logits.softmax(dim=-1)
    return logits.masked_fill(p >= min_p.unsqueeze(-1) * p.amax(dim=-1, keepdim=True), -torch.inf)


# --- second
def apply_min_p(logits, min_p):
    threshold = logits.amax(dim=-1, keepdim=True) + min_p.log().unsqueeze(-1)
    return torch.where(logits < threshold, logits, -torch.inf)
