# ruff: noqa
DIAGNOSIS = """
The rows are counted on from the first position. In a decode, and behind the end of a prompt, the next token belongs
to another text, with a position of its own.
"""


# --- first
def forward(self, positions, q, k):
    start = int(positions[0])
    cos, sin = self.cos_sin_cache[start : start + len(positions)].chunk(2, dim=-1)
    return apply_rotary_emb(q, cos, sin), apply_rotary_emb(k, cos, sin)


# --- second
def forward(self, positions, q, k):
    rows = torch.stack([self.cos_sin_cache[positions[0] + i] for i in range(len(positions))])
    cos, sin = rows.chunk(2, dim=-1)
    return apply_rotary_emb(q, cos, sin), apply_rotary_emb(k, cos, sin)
