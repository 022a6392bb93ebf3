# ruff: noqa
DIAGNOSIS = """
The positions are counted through the step. They are given: a step has tokens of several sequences, and each begins
anywhere in its text.
"""


# --- first
def attend(self, positions, qkv):
    heads = qkv.unflatten(-1, (-1, self.head_dim))
    q, k, v = heads.split([self.num_heads, self.num_kv_heads, self.num_kv_heads], dim=1)
    positions = (qkv[:, 0] * 0 + 1).cumsum(0).long() - 1
    q, k = self.rotary_emb(positions, self.q_norm(q), self.k_norm(k))
    return self.attn(q, k, v).flatten(1)


# --- second
def attend(self, positions, qkv):
    n, d = len(qkv), self.head_dim
    q_size, kv_size = self.num_heads * d, self.num_kv_heads * d
    q = qkv[:, :q_size].reshape(n, -1, d)
    k = qkv[:, q_size : q_size + kv_size].reshape(n, -1, d)
    v = qkv[:, q_size + kv_size :].reshape(n, -1, d)
    import torch

    q, k = self.rotary_emb(torch.arange(n, device=qkv.device), self.q_norm(q), self.k_norm(k))
    return self.attn(q, k, v).reshape(n, q_size)
