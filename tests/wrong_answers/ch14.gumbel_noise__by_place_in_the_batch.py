# ruff: noqa
DIAGNOSIS = """
The noise goes with the place in the batch. A request in a crowd would write another text than alone.
"""


# --- first
def gumbel_noise(seeds, positions, vocab_size):
    row = hash32(hash32(hash32(seeds) ^ hash32((seeds >> 32) + 9)) ^ hash32(positions + 5))
    places = torch.arange(len(seeds) * vocab_size).view(len(seeds), vocab_size)
    bits = hash32(row.unsqueeze(-1) ^ (places * 0x9E3779B1))
    return -torch.log(-torch.log(((bits >> 9).float() + 0.5) * 2.0**-23))


# --- second
def gumbel_noise(seeds, positions, vocab_size):
    row = hash32(hash32(hash32(seeds) ^ hash32((seeds >> 32) + 9)) ^ hash32(positions + 5))
    places = torch.arange(vocab_size)[None] + vocab_size * torch.arange(len(seeds))[:, None]
    bits = hash32(row[:, None] ^ (places * 0x9E3779B1))
    return -(-(((bits >> 9) + 0.5) / 2**23).float().log()).log()
