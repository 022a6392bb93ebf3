# ruff: noqa
DIAGNOSIS = """
The least likely tokens stay: the sorted row is read from the wrong end.
"""


# --- first
def apply_top_k_top_p(logits, top_k, top_p):
    values, order = logits.sort(dim=-1)
    if top_k is not None:
        kth = values.gather(-1, (top_k - 1).unsqueeze(-1))
        values = values.masked_fill(values > kth, -torch.inf)
    if top_p is not None:
        p = values.softmax(dim=-1)
        dropped = p.cumsum(-1) - p >= top_p.unsqueeze(-1)
        dropped[:, 0] = False
        values = values.masked_fill(dropped, -torch.inf)
    return torch.empty_like(logits).scatter_(-1, order, values)


# --- second
def apply_top_k_top_p(logits, top_k, top_p):
    result = logits.clone()
    for row in range(len(logits)):
        order = logits[row].argsort()
        if top_k is not None:
            result[row, logits[row] > logits[row, order[int(top_k[row]) - 1]]] = -torch.inf
        if top_p is not None:
            p = result[row, order].softmax(0)
            before = p.cumsum(0) - p
            before[0] = 0
            result[row, order[before >= top_p[row]]] = -torch.inf
    return result
