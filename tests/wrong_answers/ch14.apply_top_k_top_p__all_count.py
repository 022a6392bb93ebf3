# ruff: noqa
DIAGNOSIS = """
Top-p adds up probabilities of all tokens, also of those that top-k drops. It comes after top-k, on a softmax of
what top-k has kept.
"""


# --- first
def apply_top_k_top_p(logits, top_k, top_p):
    values, order = logits.sort(dim=-1, descending=True)
    p = values.softmax(dim=-1)
    if top_k is not None:
        kth = values.gather(-1, (top_k - 1).unsqueeze(-1))
        values = values.masked_fill(values < kth, -torch.inf)
    if top_p is not None:
        dropped = (p.cumsum(-1) - p >= top_p.unsqueeze(-1)) & (top_p.unsqueeze(-1) < 1)
        dropped[:, 0] = False
        values = values.masked_fill(dropped, -torch.inf)
    return torch.empty_like(logits).scatter_(-1, order, values)


# --- second
def apply_top_k_top_p(logits, top_k, top_p):
    result = logits.clone()
    p = logits.softmax(dim=-1)
    for row in range(len(logits)):
        if top_k is not None:
            kth = logits[row].topk(int(top_k[row])).values[-1]
            result[row, logits[row] < kth] = -torch.inf
        if top_p is not None:
            order = logits[row].argsort(descending=True)
            before = p[row, order].cumsum(0) - p[row, order]
            before[0] = 0
            result[row, order[(before >= top_p[row]) & (top_p[row] < 1)]] = -torch.inf
    return result
