# ruff: noqa
DIAGNOSIS = """
All tokens get the row of the last position. Each token has its own: index the table with the whole tensor of
positions.
"""


# --- first
def forward(self, positions, q, k):
    cos, sin = self.cos_sin_cache[positions[-1:]].chunk(2, dim=-1)
    return apply_rotary_emb(q, cos, sin), apply_rotary_emb(k, cos, sin)


# --- second
def forward(self, positions, q, k):
    row = self.cos_sin_cache[int(positions[-1])].expand(len(positions), 1, -1)
    cos, sin = row.chunk(2, dim=-1)
    return apply_rotary_emb(q, cos, sin), apply_rotary_emb(k, cos, sin)
