# ruff: noqa
DIAGNOSIS = """
The gate goes through a sigmoid. SiLU is x times its sigmoid.
"""


# --- first
def forward(self, x):
    gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
    return self.down_proj(gate.sigmoid() * up)


# --- second
def forward(self, x):
    gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
    return self.down_proj(up * nn.functional.sigmoid(gate))
