# ruff: noqa
DIAGNOSIS = """
Seed and position are added before they are mixed: seed 20 at position 9 has the noise of seed 21 at position 8.
"""


# --- first
def gumbel_noise(seeds, positions, vocab_size):
    row = hash32(hash32(seeds + positions) ^ hash32(((seeds + positions) >> 32) + 9))
    bits = hash32(row.unsqueeze(-1) ^ (torch.arange(vocab_size) * 0x9E3779B1))
    return -torch.log(-torch.log(((bits >> 9).float() + 0.5) * 2.0**-23))


# --- second
def gumbel_noise(seeds, positions, vocab_size):
    total = positions + seeds
    row = hash32(hash32(total) ^ hash32((total >> 32) + 9))
    bits = hash32(row[:, None] ^ (torch.arange(vocab_size)[None] * 0x9E3779B1))
    return -(-(((bits >> 9) + 0.5) / 2**23).float().log()).log()
