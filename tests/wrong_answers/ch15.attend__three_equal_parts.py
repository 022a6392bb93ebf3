# ruff: noqa
DIAGNOSIS = """
A row is cut into three equal parts. There are fewer key and value heads than query heads.
"""


# --- first
def attend(self, positions, qkv):
    q, k, v = qkv.unflatten(-1, (-1, self.head_dim)).chunk(3, dim=1)
    q, k = self.rotary_emb(positions, self.q_norm(q), self.k_norm(k))
    return self.attn(q, k, v).flatten(1)


# --- second
def attend(self, positions, qkv):
    heads = qkv.reshape(len(qkv), -1, self.head_dim)
    q, k, v = heads.tensor_split(3, dim=1) if heads.shape[1] % 3 else heads.chunk(3, dim=1)
    if heads.shape[1] % 3:
        size = -(-heads.shape[1] // 3)
        q, k, v = heads.split(size, dim=1)
    q, k = self.rotary_emb(positions, self.q_norm(q), self.k_norm(k))
    return self.attn(q, k, v).flatten(1)
