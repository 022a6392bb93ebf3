# ruff: noqa
DIAGNOSIS = """
The softmax runs over the heads, and should run over the keys, which are the last dimension here.
"""


# --- first
def causal_attention(q, k, v, scale):
    n, m, group = len(q), len(k), q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    mask = torch.ones(n, m, dtype=torch.bool).tril(m - n)
    scores = scores.masked_fill(~mask, float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(0), v)


# --- second
def causal_attention(q, k, v, scale):
    n, m, group = len(q), len(k), q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    mask = torch.ones(n, m, dtype=torch.bool).tril(m - n)
    scores = scores.masked_fill(~mask, float("-inf"))
    return torch.einsum("hqk,khd->qhd", F.softmax(scores, dim=0), v)
