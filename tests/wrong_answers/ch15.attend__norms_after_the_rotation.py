# ruff: noqa
DIAGNOSIS = """
The norms come after the rotation. A rotation leaves the size of a head as it is, but mixes its features, and the weight of a norm
belongs to the features before that.
"""


# --- first
def attend(self, positions, qkv):
    heads = qkv.unflatten(-1, (-1, self.head_dim))
    q, k, v = heads.split([self.num_heads, self.num_kv_heads, self.num_kv_heads], dim=1)
    q, k = self.rotary_emb(positions, q, k)
    return self.attn(self.q_norm(q), self.k_norm(k), v).flatten(1)


# --- second
def attend(self, positions, qkv):
    n, d = len(qkv), self.head_dim
    q_size, kv_size = self.num_heads * d, self.num_kv_heads * d
    q = qkv[:, :q_size].reshape(n, -1, d)
    k = qkv[:, q_size : q_size + kv_size].reshape(n, -1, d)
    v = qkv[:, q_size + kv_size :].reshape(n, -1, d)
    q, k = self.rotary_emb(positions, q, k)
    q = self.q_norm(q)
    k = self.k_norm(k)
    return self.attn(q, k, v).reshape(n, q_size)
