# ruff: noqa
DIAGNOSIS = """
Your block i starts at token i. So the blocks overlap, and most tokens are in several of them. How many tokens are in the i
blocks before this one?
"""


# --- first
def block(self, i):
    if i < 0 or i >= self.num_blocks:
        raise IndexError(i)
    return self.token_ids[i : i + self.block_size]


# --- second
def block(self, i):
    if i < 0 or i >= self.num_blocks:
        raise IndexError(i)
    return [self.token_ids[j] for j in range(i, min(i + self.block_size, self.num_tokens))]
