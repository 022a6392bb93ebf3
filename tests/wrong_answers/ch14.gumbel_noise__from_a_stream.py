# ruff: noqa
DIAGNOSIS = """
The noise goes on from call to call, as a generator does. The same request gets other numbers each time it is asked.
"""


# --- first
def gumbel_noise(seeds, positions, vocab_size):
    u = torch.rand(len(seeds), vocab_size) * (1 - 2e-6) + 1e-6
    return -torch.log(-torch.log(u))


# --- second
def gumbel_noise(seeds, positions, vocab_size):
    exponential = torch.empty(len(seeds), vocab_size).exponential_().clamp(min=1e-9)
    return -exponential.log()
