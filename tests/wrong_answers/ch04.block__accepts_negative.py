# ruff: noqa
DIAGNOSIS = """
Blocks after the last one are refused, but not those before the first one. block(-1) gives an empty list, block(-2) tokens
from somewhere. Both look like an answer. There are two ends to watch.
"""


# --- first
def block(self, i):
    if i >= self.num_blocks:
        raise IndexError(i)
    return self.token_ids[i * self.block_size : (i + 1) * self.block_size]


# --- second
def block(self, i):
    if i > self.num_blocks - 1:
        raise IndexError("no such block")
    start = i * self.block_size
    return self.token_ids[start : start + self.block_size]
