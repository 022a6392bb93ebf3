# ruff: noqa
DIAGNOSIS = """
Hidden keys have the score 0. That is not little: exp(0) is 1. They need -inf.
"""


# --- first
def causal_attention(q, k, v, scale):
    n, m, group = len(q), len(k), q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    mask = torch.ones(n, m, dtype=torch.bool).tril(m - n)
    scores = scores.masked_fill(~mask, 0.0)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)


# --- second
def causal_attention(q, k, v, scale):
    n, m, group = len(q), len(k), q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    mask = torch.ones(n, m, dtype=torch.bool).tril(m - n)
    scores = scores * mask
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)
