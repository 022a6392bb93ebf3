# ruff: noqa
def causal_attention(q, k, v, scale):
    output = torch.empty_like(q)
    group, before = q.shape[1] // k.shape[1], len(k) - len(q)
    for i in range(len(q)):
        for h in range(q.shape[1]):
            keys, values = (x[: before + i + 1, h // group].float() for x in (k, v))
            scores = scale * keys @ q[i, h].float()
            weights = (scores - scores.max()).exp()
            output[i, h] = ((weights / weights.sum()) @ values).to(q.dtype)
    return output
