# ruff: noqa
DIAGNOSIS = """
Min-p comes before the temperature. It looks at what the temperature has made of the logits.
"""


# --- first
def forward(self, logits, metadata=None):
    if metadata is None:
        return logits.argmax(-1)
    is_greedy = metadata.temperatures == 0
    x = logits.float()
    if metadata.min_p is not None:
        x = apply_min_p(x, metadata.min_p)
    x = apply_temperature(x, torch.where(is_greedy, 1.0, metadata.temperatures))
    if metadata.top_k is not None or metadata.top_p is not None:
        x = apply_top_k_top_p(x, metadata.top_k, metadata.top_p)
    x = x + gumbel_noise(metadata.seeds, metadata.positions, x.shape[-1])
    return torch.where(is_greedy, logits.argmax(-1), x.argmax(-1))


# --- second
def forward(self, logits, metadata=None):
    best = logits.argmax(dim=-1)
    if metadata is None:
        return best
    nothing = torch.zeros_like(metadata.temperatures)
    kept = apply_min_p(logits.float(), nothing if metadata.min_p is None else metadata.min_p)
    kept = kept / metadata.temperatures.masked_fill(metadata.temperatures == 0, 1.0)[:, None]
    if metadata.top_k is not None:
        kept = apply_top_k_top_p(kept, metadata.top_k, None)
    if metadata.top_p is not None:
        kept = apply_top_k_top_p(kept, None, metadata.top_p)
    drawn = (kept + gumbel_noise(metadata.seeds, metadata.positions, logits.shape[-1])).argmax(dim=-1)
    return best.where(metadata.temperatures == 0, drawn)
