# ruff: noqa
# Right, and nothing like ours: a grader must not ask for our way of doing it.
def apply_top_k_top_p(logits, top_k, top_p):
    rows = []
    for i, row in enumerate(logits):
        keep = torch.isfinite(row)
        if top_k is not None:
            better = (row.unsqueeze(0) > row.unsqueeze(1)).sum(1)
            keep = keep & (better < top_k[i])
        if top_p is not None:
            chances = torch.where(keep, row.double(), -torch.inf).softmax(0)
            best = torch.argsort(chances, descending=True)
            before = torch.zeros_like(chances)
            before[best] = chances[best].cumsum(0) - chances[best]
            keep = keep & ((before < float(top_p[i])) | (top_p[i] == 1) | (before == 0))
        rows.append(torch.where(keep, row, torch.tensor(-torch.inf)))
    return torch.stack(rows)
