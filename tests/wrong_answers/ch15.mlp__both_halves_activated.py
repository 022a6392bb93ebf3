# ruff: noqa
DIAGNOSIS = """
Both halves go through SiLU; it is for the gate alone.
"""


# --- first
def forward(self, x):
    gate, up = nn.functional.silu(self.gate_up_proj(x)).chunk(2, dim=-1)
    return self.down_proj(gate * up)


# --- second
def forward(self, x):
    gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
    return self.down_proj(nn.functional.silu(gate) * nn.functional.silu(up))
