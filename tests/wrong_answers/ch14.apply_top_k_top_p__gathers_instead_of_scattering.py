# ruff: noqa
DIAGNOSIS = """
You put the logits back with gather. `order` says which token stands at a place: so the value goes to order[i],
which is scatter.
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
    return ascending.gather(-1, order)


# --- second
def apply_top_k_top_p(logits, top_k, top_p):
    values, order = torch.sort(logits, dim=1)
    rows = []
    for row in range(len(values)):
        one = values[row].clone()
        if top_k is not None:
            one[one < one[len(one) - int(top_k[row])]] = -torch.inf
        if top_p is not None:
            dropped = one.softmax(0).cumsum(0) <= 1 - top_p[row]
            dropped[-1] = False
            one[dropped] = -torch.inf
        rows.append(one[order[row]])
    return torch.stack(rows)
