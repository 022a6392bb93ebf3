# ruff: noqa
DIAGNOSIS = """
Every query sees one key too many: that of the token after its own.
"""


# --- first
def causal_attention(q, k, v, scale):
    n, m, group = len(q), len(k), q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    mask = torch.ones(n, m, dtype=torch.bool).tril(m - n + 1)
    scores = scores.masked_fill(~mask, float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)


# --- second
def causal_attention(q, k, v, scale):
    n, m = len(q), len(k)
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    mask = torch.ones(n, m, dtype=torch.bool).tril(m - n + 1)
    return F.scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=True)[0].transpose(0, 1)
