# ruff: noqa
DIAGNOSIS = """
A row of temperature 0 is drawn as if it had temperature 1. It is greedy: at the end it takes the most likely token.
"""


# --- first
def forward(self, logits, metadata=None):
    if metadata is None:
        return logits.argmax(dim=-1)
    scaled = apply_temperature(logits, torch.where(metadata.temperatures == 0, 1.0, metadata.temperatures))
    if metadata.min_p is not None:
        scaled = apply_min_p(scaled, metadata.min_p)
    if metadata.top_k is not None or metadata.top_p is not None:
        scaled = apply_top_k_top_p(scaled, metadata.top_k, metadata.top_p)
    return (scaled + gumbel_noise(metadata.seeds, metadata.positions, logits.shape[-1])).argmax(dim=-1)


# --- second
def forward(self, logits, metadata=None):
    if metadata is None:
        return logits.max(dim=1).indices
    temperatures = metadata.temperatures + (metadata.temperatures == 0)
    x = apply_temperature(logits, temperatures)
    x = x if metadata.min_p is None else apply_min_p(x, metadata.min_p)
    if metadata.top_k is not None or metadata.top_p is not None:
        x = apply_top_k_top_p(x, metadata.top_k, metadata.top_p)
    x = x + gumbel_noise(metadata.seeds, metadata.positions, x.shape[1])
    return x.max(dim=1).indices
