# ruff: noqa
DIAGNOSIS = """
Without metadata every row is greedy. You ask it for temperatures, and it is None.
"""


# --- first
def forward(self, logits, metadata=None):
    is_greedy = metadata.temperatures == 0
    scaled = apply_temperature(logits, torch.where(is_greedy, 1.0, metadata.temperatures))
    if metadata.min_p is not None:
        scaled = apply_min_p(scaled, metadata.min_p)
    if metadata.top_k is not None or metadata.top_p is not None:
        scaled = apply_top_k_top_p(scaled, metadata.top_k, metadata.top_p)
    noise = gumbel_noise(metadata.seeds, metadata.positions, logits.shape[-1])
    return torch.where(is_greedy, logits.argmax(dim=-1), (scaled + noise).argmax(dim=-1))


# --- second
def forward(self, logits, metadata=None):
    temperatures = metadata.temperatures.clone()
    greedy_rows = temperatures == 0
    temperatures[greedy_rows] = 1.0
    x = apply_temperature(logits, temperatures)
    if metadata.min_p is not None:
        x = apply_min_p(x, metadata.min_p)
    if not (metadata.top_k is None and metadata.top_p is None):
        x = apply_top_k_top_p(x, metadata.top_k, metadata.top_p)
    tokens = (x + gumbel_noise(metadata.seeds, metadata.positions, x.shape[1])).argmax(1)
    tokens[greedy_rows] = logits[greedy_rows].argmax(1)
    return tokens
