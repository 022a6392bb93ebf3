# ruff: noqa
DIAGNOSIS = """
You drop what is exactly at the limit, too. With min_p 1 nothing is left of the row, not even its favorite.
"""


# --- first
def apply_min_p(logits, min_p):
    threshold = logits.amax(dim=-1, keepdim=True) + min_p.log().unsqueeze(-1)
    return logits.masked_fill(logits <= threshold, -torch.inf)


# --- second
def apply_min_p(logits, min_p):
    threshold = logits.max(1).values + torch.log(min_p)
    return torch.where(logits > threshold[:, None], logits, -torch.inf)
