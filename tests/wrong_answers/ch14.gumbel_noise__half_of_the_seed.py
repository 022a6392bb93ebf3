# ruff: noqa
DIAGNOSIS = """
hash32 looks at 32 bits, and a seed has 63: the upper ones play no part. Mix them in with seeds >> 32.
"""


# --- first
def gumbel_noise(seeds, positions, vocab_size):
    row = hash32(hash32(seeds) ^ hash32(positions + 5) * 3)
    bits = hash32(row.unsqueeze(-1) ^ (torch.arange(vocab_size) * 0x9E3779B1))
    return -torch.log(-torch.log(((bits >> 9).float() + 0.5) * 2.0**-23))


# --- second
def gumbel_noise(seeds, positions, vocab_size):
    row = hash32(hash32(seeds & 0xFFFFFFFF) ^ (3 * hash32(positions + 5)))
    bits = hash32(row[:, None] ^ (torch.arange(vocab_size)[None] * 0x9E3779B1))
    return -(-(((bits >> 9) + 0.5) / 2**23).float().log()).log()
