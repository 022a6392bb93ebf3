# ruff: noqa
DIAGNOSIS = """
One row of temperature 0 makes the whole batch greedy. Each row has its own temperature.
"""


# --- first
def forward(self, logits, metadata=None):
    if metadata is None or (metadata.temperatures == 0).any():
        return logits.argmax(dim=-1)
    scaled = apply_temperature(logits, metadata.temperatures)
    if metadata.min_p is not None:
        scaled = apply_min_p(scaled, metadata.min_p)
    if metadata.top_k is not None or metadata.top_p is not None:
        scaled = apply_top_k_top_p(scaled, metadata.top_k, metadata.top_p)
    return (scaled + gumbel_noise(metadata.seeds, metadata.positions, logits.shape[-1])).argmax(dim=-1)


# --- second
def forward(self, logits, metadata=None):
    if metadata is not None and metadata.temperatures.min() > 0:
        noise = gumbel_noise(metadata.seeds, metadata.positions, logits.shape[-1])
        logits = logits.float() / metadata.temperatures[:, None]
        if metadata.min_p is not None:
            logits = apply_min_p(logits, metadata.min_p)
        if metadata.top_k is not None or metadata.top_p is not None:
            logits = apply_top_k_top_p(logits, metadata.top_k, metadata.top_p)
        logits = logits + noise
    return logits.argmax(dim=-1)
