# ruff: noqa
DIAGNOSIS = """
A query that has seen no key has the maximum -inf, and -inf - -inf is nan. Subtract something finite there.
"""


# --- first
def merge_tile(scores, values, maximum, total, output):
    new = torch.maximum(maximum, scores.amax(1))
    shift = new
    weights = torch.exp(scores - shift[:, None])
    decay = torch.exp(maximum - shift)
    return new, total * decay + weights.sum(1), output * decay[:, None] + weights @ values


# --- second
def merge_tile(scores, values, maximum, total, output):
    top = scores.max(dim=1, keepdim=True).values
    old = maximum.unsqueeze(1)
    new = torch.where(old > top, old, top)
    safe = new
    weights = (scores - safe).exp()
    decay = (old - safe).exp()
    total = total.unsqueeze(1) * decay + weights.sum(dim=1, keepdim=True)
    output = output * decay + torch.matmul(weights, values)
    return new.squeeze(1), total.squeeze(1), output
