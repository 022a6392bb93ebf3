# ruff: noqa
DIAGNOSIS = """
Only the gate's half is used; it should open and close the other half.
"""


# --- first
def forward(self, x):
    gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
    return self.down_proj(nn.functional.silu(gate))


# --- second
def forward(self, x):
    gate = self.gate_up_proj(x).tensor_split(2, dim=-1)[0]
    return self.down_proj(gate * gate.sigmoid())
