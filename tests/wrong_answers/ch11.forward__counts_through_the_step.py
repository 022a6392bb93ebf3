# ruff: noqa
DIAGNOSIS = """
The tokens are counted through the step. That is right for one prompt from its beginning and for nothing else: in a
decode, each token would be at the beginning of its text. positions says where each one is.
"""


# --- first
def forward(self, positions, q, k):
    cos, sin = self.cos_sin_cache[: len(positions)].chunk(2, dim=-1)
    return apply_rotary_emb(q, cos, sin), apply_rotary_emb(k, cos, sin)


# --- second
def forward(self, positions, q, k):
    rows = self.cos_sin_cache[torch.arange(q.shape[0])]
    half = rows.shape[-1] // 2
    return apply_rotary_emb(q, rows[..., :half], rows[..., half:]), apply_rotary_emb(
        k, rows[..., :half], rows[..., half:]
    )
