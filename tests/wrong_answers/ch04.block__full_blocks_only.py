# ruff: noqa
DIAGNOSIS = """
You refuse the last block when it is not full. It exists all the same: it has fewer tokens, and the next ones go there.
num_blocks counts it.
"""


# --- first
def block(self, i):
    if not 0 <= i < self.num_tokens // self.block_size:
        raise IndexError(i)
    return self.token_ids[i * self.block_size : (i + 1) * self.block_size]


# --- second
def block(self, i):
    start = i * self.block_size
    if i < 0 or start + self.block_size > len(self.token_ids):
        raise IndexError("no such block")
    return self.token_ids[start : start + self.block_size]
