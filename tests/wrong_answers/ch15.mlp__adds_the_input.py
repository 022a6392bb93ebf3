# ruff: noqa
DIAGNOSIS = """
The input is added to the result. The stream is added by the decoder layer; and what comes in here is not the stream, but a
normalized copy.
"""


# --- first
def forward(self, x):
    return x + self.down_proj(self.act_fn(self.gate_up_proj(x)))


# --- second
def forward(self, x):
    residual = x
    x = self.gate_up_proj(x)
    x = self.act_fn(x)
    x = self.down_proj(x)
    return residual + x
