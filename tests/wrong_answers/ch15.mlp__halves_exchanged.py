# ruff: noqa
DIAGNOSIS = """
The two halves have changed places: the first half is the gate and goes through SiLU, the second is what it opens or closes.
"""


# --- first
def forward(self, x):
    up, gate = self.gate_up_proj(x).chunk(2, dim=-1)
    return self.down_proj(nn.functional.silu(gate) * up)


# --- second
def forward(self, x):
    both = self.gate_up_proj(x)
    return self.down_proj(self.act_fn(both.roll(both.shape[-1] // 2, dims=-1)))
