# ruff: noqa
DIAGNOSIS = """
Dropped tokens get the logit 0. That is no low logit: it may even be the largest. Only -inf is never drawn.
"""


# --- first
def apply_min_p(logits, min_p):
    p = logits.softmax(dim=-1)
    return logits.masked_fill(p < min_p.unsqueeze(-1) * p.amax(dim=-1, keepdim=True), 0.0)


# --- second
def apply_min_p(logits, min_p):
    limit = logits.max(-1, keepdim=True).values + min_p[:, None].log()
    return torch.where(logits < limit, torch.zeros_like(logits), logits)
