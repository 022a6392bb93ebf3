# ruff: noqa
DIAGNOSIS = """
The old tensors were changed in place. New ones are asked for.
"""


# --- first
def merge_tile(scores, values, maximum, total, output):
    new = torch.maximum(maximum, scores.amax(1))
    shift = new.masked_fill(new == -math.inf, 0.0)
    weights = torch.exp(scores - shift[:, None])
    decay = torch.exp(maximum - shift)
    total *= decay
    total += weights.sum(1)
    output *= decay[:, None]
    output += weights @ values
    return new, total, output


# --- second
def merge_tile(scores, values, maximum, total, output):
    top = scores.max(dim=1, keepdim=True).values
    old = maximum.unsqueeze(1)
    new = torch.where(old > top, old, top)
    safe = torch.where(torch.isinf(new), torch.zeros_like(new), new)
    weights = (scores - safe).exp()
    decay = (old - safe).exp()
    total.mul_(decay[:, 0]).add_(weights.sum(dim=1))
    output.mul_(decay).add_(torch.matmul(weights, values))
    return new.squeeze(1), total, output
