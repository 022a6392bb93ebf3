# ruff: noqa
DIAGNOSIS = """
Rows of temperature 0 are divided by 0. Give them another temperature for a while, and their greedy token at the
end.
"""


# --- first
def forward(self, logits, metadata=None):
    if metadata is None:
        return logits.argmax(dim=-1)
    scaled = apply_temperature(logits, metadata.temperatures)
    if metadata.min_p is not None:
        scaled = apply_min_p(scaled, metadata.min_p)
    if metadata.top_k is not None or metadata.top_p is not None:
        scaled = apply_top_k_top_p(scaled, metadata.top_k, metadata.top_p)
    return (scaled + gumbel_noise(metadata.seeds, metadata.positions, logits.shape[-1])).argmax(dim=-1)


# --- second
def forward(self, logits, metadata=None):
    if metadata is not None:
        noise = gumbel_noise(metadata.seeds, metadata.positions, logits.size(1))
        logits = apply_temperature(logits, metadata.temperatures)
        if metadata.min_p is not None:
            logits = apply_min_p(logits, metadata.min_p)
        if metadata.has_filters and not (metadata.top_k is None and metadata.top_p is None):
            logits = apply_top_k_top_p(logits, metadata.top_k, metadata.top_p)
        logits = logits + noise
    return torch.argmax(logits, dim=1)
