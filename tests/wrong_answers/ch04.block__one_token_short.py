# ruff: noqa
DIAGNOSIS = """
The last token of each block is missing. The end of a slice is not part of it: [0:4] are four tokens, 0 to 3. So the end of a
block is where the next one starts.
"""


# --- first
def block(self, i):
    if i < 0 or i >= self.num_blocks:
        raise IndexError(i)
    return self.token_ids[i * self.block_size : (i + 1) * self.block_size - 1]


# --- second
def block(self, i):
    if i < 0 or i >= self.num_blocks:
        raise IndexError(i)
    start = i * self.block_size
    end = start + self.block_size - 1
    return [token for token in self.token_ids[start:end]]
