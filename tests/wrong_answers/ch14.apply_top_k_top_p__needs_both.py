# ruff: noqa
DIAGNOSIS = """
You take both filters as given. Each may be None, where no row of the batch asks for it.
"""


# --- first
def apply_top_k_top_p(logits, top_k, top_p):
    ascending, order = logits.sort(dim=-1)
    kth = ascending.gather(-1, (ascending.shape[-1] - top_k).unsqueeze(-1))
    ascending = ascending.masked_fill(ascending < kth, -torch.inf)
    dropped = ascending.softmax(dim=-1).cumsum(dim=-1) <= 1 - top_p.unsqueeze(-1)
    dropped[:, -1] = False
    return torch.empty_like(logits).scatter_(-1, order, ascending.masked_fill(dropped, -torch.inf))


# --- second
def apply_top_k_top_p(logits, top_k, top_p):
    values, order = logits.sort(dim=-1, descending=True)
    kth = values.gather(1, (top_k - 1).unsqueeze(1))
    limits = top_p.unsqueeze(1)
    values = torch.where(values < kth, -torch.inf, values)
    p = values.softmax(1)
    dropped = (p.cumsum(1) - p >= limits) & (limits < 1)
    dropped[:, 0] = False
    return torch.empty_like(logits).scatter_(1, order, values.masked_fill(dropped, -torch.inf))
