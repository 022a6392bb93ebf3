# ruff: noqa
DIAGNOSIS = """
Every query sees all keys, also those of tokens that come after its own: the causal mask is missing,
or without effect.
"""


# --- first
def causal_attention(q, k, v, scale):
    n, m, group = len(q), len(k), q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)


# --- second
def causal_attention(q, k, v, scale):
    n, m = len(q), len(k)
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=True)[0].transpose(0, 1)
