# ruff: noqa
DIAGNOSIS = """
No noise is added, so the most likely token always wins: the temperature changes nothing.
"""


# --- first
def forward(self, logits, metadata=None):
    return logits.argmax(dim=-1)


# --- second
def forward(self, logits, metadata=None):
    greedy = logits.argmax(dim=-1)
    if metadata is None:
        return greedy
    is_greedy = metadata.temperatures == 0
    scaled = apply_temperature(logits, torch.where(is_greedy, 1.0, metadata.temperatures))
    if metadata.min_p is not None:
        scaled = apply_min_p(scaled, metadata.min_p)
    if metadata.top_k is not None or metadata.top_p is not None:
        scaled = apply_top_k_top_p(scaled, metadata.top_k, metadata.top_p)
    return torch.where(is_greedy, greedy, scaled.argmax(dim=-1))
