# ruff: noqa
DIAGNOSIS = """
There is only one logarithm: -log(u) is exponential noise. Gumbel noise is -log(-log(u)).
"""


# --- first
def gumbel_noise(seeds, positions, vocab_size):
    row = hash32(hash32(hash32(seeds) ^ hash32((seeds >> 32) + 9)) ^ hash32(positions + 5))
    bits = hash32(row.unsqueeze(-1) ^ (torch.arange(vocab_size) * 0x9E3779B1))
    return -torch.log(((bits >> 9).float() + 0.5) * 2.0**-23)


# --- second
def gumbel_noise(seeds, positions, vocab_size):
    row = hash32(hash32(hash32(seeds) ^ hash32((seeds >> 32) + 9)) ^ hash32(positions + 5))
    bits = hash32(row[:, None] ^ (torch.arange(vocab_size)[None] * 0x9E3779B1))
    return -(((bits >> 9) + 0.5) / 2**23).float().log()
