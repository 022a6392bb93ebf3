# ruff: noqa
DIAGNOSIS = """
Keys were hidden after the softmax, so the weights of a query do not sum up to 1 any more.
"""


# --- first
def causal_attention(q, k, v, scale):
    n, m, group = len(q), len(k), q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    mask = torch.ones(n, m, dtype=torch.bool).tril(m - n)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1) * mask, v)


# --- second
def causal_attention(q, k, v, scale):
    n, m, group = len(q), len(k), q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    mask = torch.ones(n, m, dtype=torch.bool).tril(m - n)
    scores = scores.softmax(-1).masked_fill(~mask, 0.0)
    return torch.einsum("hqk,khd->qhd", scores, v)
