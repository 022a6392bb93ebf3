# ruff: noqa
DIAGNOSIS = """
u may become 0 or 1: float32 has 24 bits, so a number of 32 is rounded, up to 1 at the end. Then a logarithm is not
finite.
"""


# --- first
def gumbel_noise(seeds, positions, vocab_size):
    row = hash32(hash32(hash32(seeds) ^ hash32((seeds >> 32) + 9)) ^ hash32(positions + 5))
    bits = hash32(row.unsqueeze(-1) ^ (torch.arange(vocab_size) * 0x9E3779B1))
    return -torch.log(-torch.log(bits.float() / 2**32))


# --- second
def gumbel_noise(seeds, positions, vocab_size):
    row = hash32(hash32(hash32(seeds) ^ hash32((seeds >> 32) + 9)) ^ hash32(positions + 5))
    bits = hash32(row[:, None] ^ (torch.arange(vocab_size)[None] * 0x9E3779B1))
    u = bits.to(torch.float32) * 2.0**-32
    return -(-u.log()).log()
