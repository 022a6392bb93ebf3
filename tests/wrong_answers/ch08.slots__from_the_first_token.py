# ruff: noqa
DIAGNOSIS = """
It begins with token 0, whatever `start` is. The tokens before `start` are cached: they are not computed, and must not be
written.
"""


# --- first
def slots(self, seq, start, end):
    if not seq.block_table:
        return []
    size = self.block_size
    return [seq.block_table[p // size] * size + p % size for p in range(end)]


# --- second
def slots(self, seq, start, end):
    slots = []
    for position in range(0, end):
        if seq.block_table:
            first = seq.block_table[position // self.block_size] * self.block_size
            slots.append(first + position % self.block_size)
    return slots
