# ruff: noqa
DIAGNOSIS = """
You compare probabilities with min_p itself. It is a share of the row's largest probability: multiply the two first.
"""


# --- first
def apply_min_p(logits, min_p):
    probabilities = logits.softmax(dim=-1)
    return logits.masked_fill(probabilities < min_p.unsqueeze(-1), -torch.inf)


# --- second
def apply_min_p(logits, min_p):
    kept = torch.softmax(logits, 1) >= min_p[:, None]
    return torch.where(kept, logits, torch.full_like(logits, -torch.inf))
