# ruff: noqa
DIAGNOSIS = """
A favorite that has more than top_p by itself is dropped, and nothing is left of its row. The most likely token
always stays.
"""


# --- first
def apply_top_k_top_p(logits, top_k, top_p):
    values, order = logits.sort(dim=-1, descending=True)
    if top_k is not None:
        values = values.masked_fill(values < values.gather(-1, (top_k - 1).unsqueeze(-1)), -torch.inf)
    if top_p is not None:
        dropped = (values.softmax(-1).cumsum(-1) > top_p.unsqueeze(-1) + 1e-6) & (top_p.unsqueeze(-1) < 1)
        values = values.masked_fill(dropped, -torch.inf)
    return torch.empty_like(logits).scatter_(-1, order, values)


# --- second
def apply_top_k_top_p(logits, top_k, top_p):
    result = logits.clone()
    for row in range(len(logits)):
        if top_k is not None:
            kth = logits[row].topk(int(top_k[row])).values[-1]
            result[row, logits[row] < kth] = -torch.inf
        if top_p is not None:
            p, total = result[row].softmax(0), 0.0
            for token in p.argsort(descending=True).tolist():
                total += float(p[token])
                if total > float(top_p[row]) + 1e-6 and top_p[row] < 1:
                    result[row, token] = -torch.inf
    return result
