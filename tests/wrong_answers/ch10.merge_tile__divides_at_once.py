# ruff: noqa
DIAGNOSIS = """
The output is divided by the total already. The next tile cannot be added to a mean: it stays a sum until all keys are
in.
"""


# --- first
def merge_tile(scores, values, maximum, total, output):
    new = torch.maximum(maximum, scores.amax(1))
    shift = new.masked_fill(new == -math.inf, 0.0)
    weights = torch.exp(scores - shift[:, None])
    decay = torch.exp(maximum - shift)
    total = total * decay + weights.sum(1)
    output = output * decay[:, None] + weights @ values
    return new, total, output / total.clamp_min(1e-30)[:, None]


# --- second
def merge_tile(scores, values, maximum, total, output):
    top = scores.max(dim=1, keepdim=True).values
    old = maximum.unsqueeze(1)
    new = torch.where(old > top, old, top)
    safe = torch.where(torch.isinf(new), torch.zeros_like(new), new)
    weights = (scores - safe).exp()
    decay = (old - safe).exp()
    total = total.unsqueeze(1) * decay + weights.sum(dim=1, keepdim=True)
    output = (output * decay + torch.matmul(weights, values)) / torch.where(total > 0, total, torch.ones_like(total))
    return new.squeeze(1), total.squeeze(1), output
