# ruff: noqa
DIAGNOSIS = """
The noise is added before the filters. They are about probabilities, and now they look at noise, too.
"""


# --- first
def forward(self, logits, metadata=None):
    greedy = logits.argmax(dim=-1)
    if metadata is None:
        return greedy
    is_greedy = metadata.temperatures == 0
    scaled = apply_temperature(logits, torch.where(is_greedy, 1.0, metadata.temperatures))
    scaled = scaled + gumbel_noise(metadata.seeds, metadata.positions, logits.shape[-1])
    if metadata.min_p is not None:
        scaled = apply_min_p(scaled, metadata.min_p)
    if metadata.top_k is not None or metadata.top_p is not None:
        scaled = apply_top_k_top_p(scaled, metadata.top_k, metadata.top_p)
    return torch.where(is_greedy, greedy, scaled.argmax(dim=-1))


# --- second
def forward(self, logits, metadata=None):
    if metadata is None:
        return logits.argmax(dim=-1)
    temperatures = metadata.temperatures.clone()
    temperatures[temperatures == 0] = 1.0
    noise = gumbel_noise(metadata.seeds, metadata.positions, logits.shape[-1])
    noisy = logits.float() / temperatures[:, None] + noise
    if metadata.min_p is not None:
        noisy = apply_min_p(noisy, metadata.min_p)
    if metadata.top_k is not None or metadata.top_p is not None:
        noisy = apply_top_k_top_p(noisy, metadata.top_k, metadata.top_p)
    tokens = noisy.argmax(dim=-1)
    tokens[metadata.temperatures == 0] = logits.argmax(dim=-1)[metadata.temperatures == 0]
    return tokens
