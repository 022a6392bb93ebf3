# ruff: noqa
DIAGNOSIS = """
All tokens of a row have the same noise. Then the argmax is what it was: every token needs a number of its own.
"""


# --- first
def gumbel_noise(seeds, positions, vocab_size):
    row = hash32(hash32(hash32(seeds) ^ hash32((seeds >> 32) + 9)) ^ hash32(positions + 5))
    u = ((row >> 9).float() + 0.5) * 2.0**-23
    return -torch.log(-torch.log(u)).unsqueeze(-1).expand(-1, vocab_size)


# --- second
def gumbel_noise(seeds, positions, vocab_size):
    row = hash32(hash32(hash32(seeds) ^ hash32((seeds >> 32) + 9)) ^ hash32(positions + 5))
    u = (((row >> 9) + 0.5) / 2**23).float()
    return -(-u.log()).log()[:, None].repeat(1, vocab_size)
