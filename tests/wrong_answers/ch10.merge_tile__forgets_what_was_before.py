# ruff: noqa
DIAGNOSIS = """
The old sums are not in it: total and output are those of the new tile alone.
"""


# --- first
def merge_tile(scores, values, maximum, total, output):
    new = torch.maximum(maximum, scores.amax(1))
    shift = new.masked_fill(new == -math.inf, 0.0)
    weights = torch.exp(scores - shift[:, None])
    decay = torch.exp(maximum - shift)
    return new, weights.sum(1), weights @ values


# --- second
def merge_tile(scores, values, maximum, total, output):
    top = scores.max(dim=1, keepdim=True).values
    old = maximum.unsqueeze(1)
    new = torch.where(old > top, old, top)
    safe = torch.where(torch.isinf(new), torch.zeros_like(new), new)
    weights = (scores - safe).exp()
    decay = (old - safe).exp()
    total = weights.sum(dim=1, keepdim=True)
    output = torch.matmul(weights, values)
    return new.squeeze(1), total.squeeze(1), output
