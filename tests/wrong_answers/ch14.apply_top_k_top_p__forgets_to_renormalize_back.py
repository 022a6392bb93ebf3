# ruff: noqa
DIAGNOSIS = """
The logits that stay were changed: you return probabilities. Logits have to come out, because the noise is added to
these.
"""


# --- first
def apply_top_k_top_p(logits, top_k, top_p):
    ascending, order = logits.sort(dim=-1)
    if top_k is not None:
        kth = ascending.gather(-1, (ascending.shape[-1] - top_k).unsqueeze(-1))
        ascending = ascending.masked_fill(ascending < kth, -torch.inf)
    if top_p is not None:
        dropped = ascending.softmax(dim=-1).cumsum(dim=-1) <= 1 - top_p.unsqueeze(-1)
        dropped[:, -1] = False
        ascending = ascending.masked_fill(dropped, -torch.inf)
    return torch.empty_like(logits).scatter_(-1, order, ascending.softmax(dim=-1))


# --- second
def apply_top_k_top_p(logits, top_k, top_p):
    result = logits.clone()
    for row in range(len(logits)):
        order = logits[row].argsort(descending=True)
        if top_k is not None:
            result[row, logits[row] < logits[row, order[int(top_k[row]) - 1]]] = -torch.inf
        if top_p is not None and float(top_p[row]) < 1:
            p = result[row, order].softmax(0)
            before = p.cumsum(0) - p
            before[0] = 0
            result[row, order[before >= top_p[row]]] = -torch.inf
    return torch.softmax(result, 1)
