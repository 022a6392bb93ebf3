# ruff: noqa
DIAGNOSIS = """
The halves have changed places: the gate, which goes through SiLU, is the first one.
"""


# --- first
def forward(self, x):
    up, gate = x.chunk(2, dim=-1)
    return F.silu(gate) * up


# --- second
def forward(self, x):
    size = x.shape[-1] // 2
    return x[..., :size] * F.silu(x[..., size:])
