# ruff: noqa
DIAGNOSIS = """
The noise is added to probabilities. Gumbel-max is about logits: argmax(logits + noise).
"""


# --- first
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
    noise = gumbel_noise(metadata.seeds, metadata.positions, logits.shape[-1])
    return torch.where(is_greedy, greedy, (scaled.softmax(dim=-1) + noise).argmax(dim=-1))


# --- second
def forward(self, logits, metadata=None):
    if metadata is None:
        return logits.argmax(dim=-1)
    temperatures = metadata.temperatures.clone()
    temperatures[temperatures == 0] = 1.0
    kept = apply_temperature(logits, temperatures)
    kept = kept if metadata.min_p is None else apply_min_p(kept, metadata.min_p)
    if not (metadata.top_k is None and metadata.top_p is None):
        kept = apply_top_k_top_p(kept, metadata.top_k, metadata.top_p)
    noise = gumbel_noise(metadata.seeds, metadata.positions, logits.shape[-1])
    tokens = torch.argmax(torch.softmax(kept, 1) + noise, dim=1)
    tokens[metadata.temperatures == 0] = logits.argmax(dim=-1)[metadata.temperatures == 0]
    return tokens
