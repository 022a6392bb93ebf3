# ruff: noqa
DIAGNOSIS = """
The last block is given whole. Behind `end` there is no token yet, so there is nothing to store.
"""


# --- first
def slots(self, seq, start, end):
    if not seq.block_table or start >= end:
        return []
    size = self.block_size
    stop = (end + size - 1) // size * size
    return [seq.block_table[p // size] * size + p % size for p in range(start, stop)]


# --- second
def slots(self, seq, start, end):
    slots = []
    if not seq.block_table or end == start:
        return slots
    for i in range(start // self.block_size, (end - 1) // self.block_size + 1):
        block_start = seq.block_table[i] * self.block_size
        first = max(start - i * self.block_size, 0)
        slots.extend(range(block_start + first, block_start + self.block_size))
    return slots
