# ruff: noqa
DIAGNOSIS = """
All rows are filtered with the k and the p of the first one. Every request has its own.
"""


# --- first
def apply_top_k_top_p(logits, top_k, top_p):
    ascending, order = logits.sort(dim=-1)
    if top_k is not None:
        kth = ascending[:, ascending.shape[-1] - int(top_k[0])].unsqueeze(-1)
        ascending = ascending.masked_fill(ascending < kth, -torch.inf)
    if top_p is not None:
        dropped = ascending.softmax(dim=-1).cumsum(dim=-1) <= 1 - top_p[0]
        dropped[:, -1] = False
        ascending = ascending.masked_fill(dropped, -torch.inf)
    return torch.empty_like(logits).scatter_(-1, order, ascending)


# --- second
def apply_top_k_top_p(logits, top_k, top_p):
    k = logits.shape[1] if top_k is None else top_k[0].item()
    p = 1.0 if top_p is None else top_p[0].item()
    best = logits.topk(k, dim=1).values[:, -1:]
    kept = torch.where(logits < best, -torch.inf, logits)
    if p < 1:
        values, order = kept.sort(dim=1, descending=True)
        chances = values.softmax(1)
        gone = chances.cumsum(1) - chances >= p
        gone[:, 0] = False
        kept = torch.empty_like(kept).scatter_(1, order, values.masked_fill(gone, -torch.inf))
    return kept
