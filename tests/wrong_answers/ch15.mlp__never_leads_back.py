# ruff: noqa
DIAGNOSIS = """
down_proj is missing, so that what comes back has intermediate_size features a token.
"""


# --- first
def forward(self, x):
    return self.act_fn(self.gate_up_proj(x))


# --- second
def forward(self, x):
    gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
    return nn.functional.silu(gate) * up
