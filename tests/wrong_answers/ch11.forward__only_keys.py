# ruff: noqa
DIAGNOSIS = """
Only the keys are rotated. Then the score depends on the key's position, and not on the distance between the two: the
queries have to be rotated, too.
"""


# --- first
def forward(self, positions, q, k):
    cos, sin = self.cos_sin_cache[positions].chunk(2, dim=-1)
    return q, apply_rotary_emb(k, cos, sin)


# --- second
def forward(self, positions, q, k):
    half = q.shape[-1] // 2
    rows = self.cos_sin_cache[positions]
    k = apply_rotary_emb(k, rows[..., :half], rows[..., half:])
    return (q, k)
