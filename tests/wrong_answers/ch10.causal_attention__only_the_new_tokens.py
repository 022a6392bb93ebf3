# ruff: noqa
DIAGNOSIS = """
The new tokens see each other only, and none of the tokens before them.
"""


# --- first
def causal_attention(q, k, v, scale):
    k, v = k[-len(q) :], v[-len(q) :]
    n, m, group = len(q), len(k), q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    mask = torch.ones(n, m, dtype=torch.bool).tril(m - n)
    scores = scores.masked_fill(~mask, float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)


# --- second
def causal_attention(q, k, v, scale):
    k, v = k[len(k) - len(q) :], v[len(v) - len(q) :]
    n, m = len(q), len(k)
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    mask = torch.ones(n, m, dtype=torch.bool).tril(m - n)
    return F.scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=True)[0].transpose(0, 1)
