# ruff: noqa
DIAGNOSIS = """
Of tokens that are exactly as likely as the k-th you keep only some. All of them stay: nobody could say why one and
not another.
"""


# --- first
def apply_top_k_top_p(logits, top_k, top_p):
    values, order = logits.sort(dim=-1, descending=True, stable=True)
    if top_k is not None:
        places = torch.arange(values.shape[-1])
        values = values.masked_fill(places >= top_k.unsqueeze(-1), -torch.inf)
    if top_p is not None:
        p = values.softmax(dim=-1)
        dropped = p.cumsum(-1) - p >= top_p.unsqueeze(-1)
        dropped[:, 0] = False
        dropped &= top_p.unsqueeze(-1) < 1
        values = values.masked_fill(dropped, -torch.inf)
    return torch.empty_like(logits).scatter_(-1, order, values)


# --- second
def apply_top_k_top_p(logits, top_k, top_p):
    result = torch.full_like(logits, -torch.inf)
    for row in range(len(logits)):
        order = logits[row].sort(descending=True, stable=True).indices
        if top_k is not None:
            order = order[: int(top_k[row])]
        if top_p is not None and float(top_p[row]) < 1:
            p = logits[row, order].softmax(0)
            before = p.cumsum(0) - p
            before[0] = 0
            order = order[before < top_p[row]]
        result[row, order] = logits[row, order]
    return result
