# ruff: noqa
DIAGNOSIS = """
Query head h took KV head h % num_kv_heads. Neighbors share one: query head h looks at h // (num_heads //
num_kv_heads).
"""


# --- first
def causal_attention(q, k, v, scale):
    n, m, group = len(q), len(k), q.shape[1] // k.shape[1]
    k, v = k.repeat(1, group, 1), v.repeat(1, group, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    mask = torch.ones(n, m, dtype=torch.bool).tril(m - n)
    scores = scores.masked_fill(~mask, float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)


# --- second
def causal_attention(q, k, v, scale):
    n, m = len(q), len(k)
    k, v = torch.cat([k] * (q.shape[1] // k.shape[1]), 1), torch.cat([v] * (q.shape[1] // v.shape[1]), 1)
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    mask = torch.ones(n, m, dtype=torch.bool).tril(m - n)
    return F.scaled_dot_product_attention(q, k, v, mask, scale=scale)[0].transpose(0, 1)
