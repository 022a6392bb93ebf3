# ruff: noqa
DIAGNOSIS = """
Both ends let something through. Negative numbers are not refused at all, and the other end comes one too late: with 3
blocks, the last one is block(2). Which values of i are good?
"""


# --- first
def block(self, i):
    if i > self.num_blocks:
        raise IndexError(i)
    return self.token_ids[i * self.block_size : (i + 1) * self.block_size]


# --- second
def block(self, i):
    if not i <= self.num_blocks:
        raise IndexError("no such block")
    start = i * self.block_size
    return self.token_ids[start : start + self.block_size]
