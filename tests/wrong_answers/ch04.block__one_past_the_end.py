# ruff: noqa
DIAGNOSIS = """
One block too many gets through: with 3 blocks, the last one is block(2), and block(3) gives an empty list. Counting starts
at 0. Look at the comparison.
"""


# --- first
def block(self, i):
    if i < 0 or i > self.num_blocks:
        raise IndexError(i)
    return self.token_ids[i * self.block_size : (i + 1) * self.block_size]


# --- second
def block(self, i):
    if not 0 <= i <= self.num_blocks:
        raise IndexError("no such block")
    start = i * self.block_size
    return self.token_ids[start : start + self.block_size]
