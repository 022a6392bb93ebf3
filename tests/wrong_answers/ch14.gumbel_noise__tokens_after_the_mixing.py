# ruff: noqa
DIAGNOSIS = """
The token id comes in after the last mixing, so one row tells what is in another. Mix once more when it is in.
"""


# --- first
def gumbel_noise(seeds, positions, vocab_size):
    row = hash32(hash32(hash32(seeds) ^ hash32((seeds >> 32) + 9)) ^ hash32(positions + 5))
    bits = row.unsqueeze(-1) ^ hash32(torch.arange(vocab_size))
    return -torch.log(-torch.log(((bits >> 9).float() + 0.5) * 2.0**-23))


# --- second
def gumbel_noise(seeds, positions, vocab_size):
    row = hash32(hash32(hash32(seeds) ^ hash32((seeds >> 32) + 9)) ^ hash32(positions + 5))
    bits = hash32(torch.arange(vocab_size))[None] ^ row[:, None]
    return -(-(((bits >> 9) + 0.5) / 2**23).float().log()).log()
