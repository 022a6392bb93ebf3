# ruff: noqa
DIAGNOSIS = """
What you return is still sorted. A logit belongs to the place of its token: put it back with scatter.
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
    return ascending


# --- second
def apply_top_k_top_p(logits, top_k, top_p):
    values = logits.sort(dim=-1, descending=True).values
    if top_k is not None:
        values = torch.where(values < values.gather(-1, top_k[:, None] - 1), -torch.inf, values)
    if top_p is not None:
        p = values.softmax(-1)
        dropped = p.cumsum(-1) - p >= top_p[:, None]
        dropped[:, 0] = False
        dropped &= top_p[:, None] < 1
        values = values.masked_fill(dropped, -torch.inf)
    return values.flip(-1)
