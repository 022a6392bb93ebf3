# ruff: noqa
DIAGNOSIS = """
cos and sin have changed places: in a row of the table the cosines come first.
"""


# --- first
def forward(self, positions, q, k):
    sin, cos = self.cos_sin_cache[positions].chunk(2, dim=-1)
    return apply_rotary_emb(q, cos, sin), apply_rotary_emb(k, cos, sin)


# --- second
def forward(self, positions, q, k):
    half = self.cos_sin_cache.shape[-1] // 2
    cos, sin = self.cos_sin_cache[positions][..., half:], self.cos_sin_cache[positions][..., :half]
    return apply_rotary_emb(q, cos, sin), apply_rotary_emb(k, cos, sin)
