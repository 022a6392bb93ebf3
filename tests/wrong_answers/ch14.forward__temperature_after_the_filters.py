# ruff: noqa
DIAGNOSIS = """
The temperature comes after the filters. A filter looks at what the temperature has made of the logits.
"""


# --- first
def forward(self, logits, metadata=None):
    greedy = logits.argmax(dim=-1)
    if metadata is None:
        return greedy
    is_greedy = metadata.temperatures == 0
    scaled = logits.float()
    if metadata.min_p is not None:
        scaled = apply_min_p(scaled, metadata.min_p)
    if metadata.top_k is not None or metadata.top_p is not None:
        scaled = apply_top_k_top_p(scaled, metadata.top_k, metadata.top_p)
    scaled = apply_temperature(scaled, torch.where(is_greedy, 1.0, metadata.temperatures))
    noise = gumbel_noise(metadata.seeds, metadata.positions, logits.shape[-1])
    return torch.where(is_greedy, greedy, (scaled + noise).argmax(dim=-1))


# --- second
def forward(self, logits, metadata=None):
    if metadata is None:
        return logits.argmax(dim=-1)
    temperatures = metadata.temperatures.clone()
    temperatures[temperatures == 0] = 1.0
    kept = logits.to(torch.float32)
    if metadata.min_p is not None:
        kept = apply_min_p(kept, metadata.min_p)
    if metadata.top_k is not None or metadata.top_p is not None:
        kept = apply_top_k_top_p(kept, metadata.top_k, metadata.top_p)
    noise = gumbel_noise(metadata.seeds, metadata.positions, logits.shape[-1])
    tokens = (kept / temperatures[:, None] + noise).argmax(dim=-1)
    tokens[metadata.temperatures == 0] = logits.argmax(dim=-1)[metadata.temperatures == 0]
    return tokens
