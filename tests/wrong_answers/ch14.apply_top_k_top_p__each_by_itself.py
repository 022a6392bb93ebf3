# ruff: noqa
DIAGNOSIS = """
Each probability is compared with top_p by itself. Top-p is about a sum: the most likely tokens, until they have it
together.
"""


# --- first
def apply_top_k_top_p(logits, top_k, top_p):
    values = logits.sort(dim=-1).values
    if top_k is not None:
        logits = logits.masked_fill(logits < values.gather(-1, (values.shape[-1] - top_k)[:, None]), -torch.inf)
    if top_p is not None:
        logits = logits.masked_fill(logits.softmax(-1) < top_p.unsqueeze(-1), -torch.inf)
    return logits


# --- second
def apply_top_k_top_p(logits, top_k, top_p):
    rows = []
    for i, row in enumerate(logits):
        if top_k is not None:
            row = torch.where(row >= row.topk(int(top_k[i])).values.min(), row, -torch.inf)
        if top_p is not None:
            row = torch.where(row.softmax(0) >= top_p[i], row, -torch.inf)
        rows.append(row)
    return torch.stack(rows)
