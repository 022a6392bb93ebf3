# ruff: noqa
DIAGNOSIS = """
You compare with the length of the block table, so a sequence that waits has no blocks for you. But its tokens are there, and
the block manager looks at them before it hands out the first physical block. Compare with the blocks that the tokens need.
"""


# --- first
def block(self, i):
    if not 0 <= i < len(self.block_table):
        raise IndexError(i)
    return self.token_ids[i * self.block_size : (i + 1) * self.block_size]


# --- second
def block(self, i):
    if i not in range(len(self.block_table)):
        raise IndexError("no such block")
    start = i * self.block_size
    return self.token_ids[start : start + self.block_size]
