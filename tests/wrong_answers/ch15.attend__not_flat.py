# ruff: noqa
DIAGNOSIS = """
The heads are still apart: what comes back is a row for each token, the outputs of its heads behind one another.
"""


# --- first
def attend(self, positions, qkv):
    heads = qkv.unflatten(-1, (-1, self.head_dim))
    q, k, v = heads.split([self.num_heads, self.num_kv_heads, self.num_kv_heads], dim=1)
    q, k = self.rotary_emb(positions, self.q_norm(q), self.k_norm(k))
    return self.attn(q, k, v)


# --- second
def attend(self, positions, qkv):
    n, d = len(qkv), self.head_dim
    q_size, kv_size = self.num_heads * d, self.num_kv_heads * d
    q = qkv[:, :q_size].reshape(n, -1, d)
    k = qkv[:, q_size : q_size + kv_size].reshape(n, -1, d)
    v = qkv[:, q_size + kv_size :].reshape(n, -1, d)
    q, k = self.rotary_emb(positions, self.q_norm(q), self.k_norm(k))
    output = self.attn(q, k, v)
    return output.reshape(n, -1, d)
