# ruff: noqa
DIAGNOSIS = """
You write into the tensor that came in. Whoever has it still reads it: log-probabilities are of the whole
distribution.
"""


# --- first
def apply_min_p(logits, min_p):
    threshold = logits.amax(dim=-1, keepdim=True) + min_p.log().unsqueeze(-1)
    return logits.masked_fill_(logits < threshold, -torch.inf)


# --- second
def apply_min_p(logits, min_p):
    p = logits.softmax(dim=-1)
    logits[p < min_p.unsqueeze(-1) * p.amax(dim=-1, keepdim=True)] = -torch.inf
    return logits
