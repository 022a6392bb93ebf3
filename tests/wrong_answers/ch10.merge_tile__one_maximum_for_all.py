# ruff: noqa
DIAGNOSIS = """
One maximum was taken for all queries. Each has its own.
"""


# --- first
def merge_tile(scores, values, maximum, total, output):
    new = torch.maximum(maximum, scores.max())
    shift = new.masked_fill(new == -math.inf, 0.0)
    weights = torch.exp(scores - shift[:, None])
    decay = torch.exp(maximum - shift)
    return new, total * decay + weights.sum(1), output * decay[:, None] + weights @ values


# --- second
def merge_tile(scores, values, maximum, total, output):
    top = scores.max().expand(len(scores), 1)
    old = maximum.unsqueeze(1)
    new = torch.where(old > top, old, top)
    safe = torch.where(torch.isinf(new), torch.zeros_like(new), new)
    weights = (scores - safe).exp()
    decay = (old - safe).exp()
    total = total.unsqueeze(1) * decay + weights.sum(dim=1, keepdim=True)
    output = output * decay + torch.matmul(weights, values)
    return new.squeeze(1), total.squeeze(1), output
