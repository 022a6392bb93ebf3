# ruff: noqa
DIAGNOSIS = """
A row is cut into features first. Its numbers are head after head, head_dim of each.
"""


# --- first
def attend(self, positions, qkv):
    heads = qkv.unflatten(-1, (self.head_dim, -1)).transpose(1, 2)
    q, k, v = heads.split([self.num_heads, self.num_kv_heads, self.num_kv_heads], dim=1)
    q, k = self.rotary_emb(positions, self.q_norm(q), self.k_norm(k))
    return self.attn(q, k, v).flatten(1)


# --- second
def attend(self, positions, qkv):
    count = self.num_heads + 2 * self.num_kv_heads
    heads = qkv.reshape(len(qkv), self.head_dim, count).permute(0, 2, 1)
    ends = self.num_heads, self.num_heads + self.num_kv_heads
    q, k, v = heads[:, : ends[0]], heads[:, ends[0] : ends[1]], heads[:, ends[1] :]
    q, k = self.rotary_emb(positions, self.q_norm(q), self.k_norm(k))
    return self.attn(q, k, v).reshape(len(qkv), -1)
