# ruff: noqa
DIAGNOSIS = """
The values are rotated, too. Position decides who is looked at, and not what is found there.
"""


# --- first
def attend(self, positions, qkv):
    heads = qkv.unflatten(-1, (-1, self.head_dim))
    q, k, v = heads.split([self.num_heads, self.num_kv_heads, self.num_kv_heads], dim=1)
    q, k = self.rotary_emb(positions, self.q_norm(q), self.k_norm(k))
    v, _ = self.rotary_emb(positions, v, v)
    return self.attn(q, k, v).flatten(1)


# --- second
def attend(self, positions, qkv):
    n, d = len(qkv), self.head_dim
    q_size, kv_size = self.num_heads * d, self.num_kv_heads * d
    q = qkv[:, :q_size].reshape(n, -1, d)
    k = qkv[:, q_size : q_size + kv_size].reshape(n, -1, d)
    v = qkv[:, q_size + kv_size :].reshape(n, -1, d)
    q, v = self.rotary_emb(positions, self.q_norm(q), v)
    k = self.rotary_emb(positions, self.k_norm(k), k)[0]
    return self.attn(q, k, v).reshape(n, q_size)
