# ruff: noqa
DIAGNOSIS = """
A dropped token has a very low logit, but not -inf. After another step somebody may compare it with the limit again.
"""


# --- first
def apply_min_p(logits, min_p):
    p = logits.softmax(dim=-1)
    return logits.masked_fill(p < min_p.unsqueeze(-1) * p.amax(dim=-1, keepdim=True), -1e9)


# --- second
def apply_min_p(logits, min_p):
    threshold = logits.amax(dim=-1, keepdim=True) + min_p.log().unsqueeze(-1)
    return torch.where(logits < threshold, -1e9, logits)
