# ruff: noqa
DIAGNOSIS = """
The noise is float64. Logits are float32 here, and their sum would be twice as large in memory.
"""


# --- first
def gumbel_noise(seeds, positions, vocab_size):
    row = hash32(hash32(hash32(seeds) ^ hash32((seeds >> 32) + 9)) ^ hash32(positions + 5))
    bits = hash32(row.unsqueeze(-1) ^ (torch.arange(vocab_size) * 0x9E3779B1))
    return -torch.log(-torch.log((bits.double() + 0.5) * 2.0**-32))


# --- second
def gumbel_noise(seeds, positions, vocab_size):
    row = hash32(hash32(hash32(seeds) ^ hash32((seeds >> 32) + 9)) ^ hash32(positions + 5))
    bits = hash32(row[:, None] ^ (torch.arange(vocab_size)[None] * 0x9E3779B1))
    return -(-((bits.to(torch.float64) + 0.5) / 2**32).log()).log()
