# ruff: noqa
DIAGNOSIS = """
ReLU shuts a gate below zero for good. SiLU lets a little through there, and the model was trained with it.
"""


# --- first
def forward(self, x):
    gate, up = x.chunk(2, dim=-1)
    return F.relu(gate) * up


# --- second
def forward(self, x):
    size = x.shape[-1] // 2
    return x[..., :size].clamp_min(0) * x[..., size:]
