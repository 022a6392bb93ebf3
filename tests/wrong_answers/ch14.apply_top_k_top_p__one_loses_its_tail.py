# ruff: noqa
DIAGNOSIS = """
A row of top_p 1 loses its tail. Added up from the most likely token on, float32 is at 1 long before the end: add up from
the other end, or leave such a row alone.
"""


# --- first
def apply_top_k_top_p(logits, top_k, top_p):
    ordered, order = logits.sort(dim=-1, descending=True)
    if top_k is not None:
        ordered = ordered.masked_fill(ordered < ordered.gather(-1, (top_k - 1).unsqueeze(-1)), -torch.inf)
    if top_p is not None:
        probabilities = ordered.softmax(dim=-1)
        before = probabilities.cumsum(dim=-1) - probabilities
        dropped = before >= top_p.unsqueeze(-1)
        dropped[:, 0] = False
        ordered = ordered.masked_fill(dropped, -torch.inf)
    return torch.empty_like(logits).scatter_(-1, order, ordered)


# --- second
def apply_top_k_top_p(logits, top_k, top_p):
    result = logits.clone()
    if top_k is not None:
        best = logits.sort(dim=-1, descending=True).values
        result[result < best.gather(-1, top_k[:, None] - 1)] = -torch.inf
    if top_p is not None:
        order = result.argsort(dim=-1, descending=True)
        chances = result.gather(-1, order).softmax(-1)
        kept = chances.cumsum(-1) - chances < top_p[:, None]
        kept[:, :1] = True
        result = result.masked_fill(~torch.zeros_like(kept).scatter_(-1, order, kept), -torch.inf)
    return result
