# ruff: noqa
DIAGNOSIS = """
The activation is missing: gate and values are only multiplied, so that nothing shuts the gate.
"""


# --- first
def forward(self, x):
    gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
    return self.down_proj(gate * up)


# --- second
def forward(self, x):
    both = self.gate_up_proj(x)
    half = both.shape[-1] // 2
    return self.down_proj(both[..., half:] * both[..., :half])
