# ruff: noqa
DIAGNOSIS = """
The keys come back first. The caller takes the first for the queries.
"""


# --- first
def forward(self, positions, q, k):
    cos, sin = self.cos_sin_cache[positions].chunk(2, dim=-1)
    return apply_rotary_emb(k, cos, sin), apply_rotary_emb(q, cos, sin)


# --- second
def forward(self, positions, q, k):
    cos, sin = self.cos_sin_cache[positions].chunk(2, dim=-1)
    k, q = (apply_rotary_emb(x, cos, sin) for x in (k, q))
    return k, q
