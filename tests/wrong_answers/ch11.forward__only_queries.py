# ruff: noqa
DIAGNOSIS = """
Only the queries are rotated. Then the score depends on the query's position, and not on the distance between the two:
the keys have to be rotated, too.
"""


# --- first
def forward(self, positions, q, k):
    cos, sin = self.cos_sin_cache[positions].chunk(2, dim=-1)
    return apply_rotary_emb(q, cos, sin), k


# --- second
def forward(self, positions, q, k):
    half = q.shape[-1] // 2
    rows = self.cos_sin_cache[positions]
    q = apply_rotary_emb(q, rows[..., :half], rows[..., half:])
    return (q, k)
