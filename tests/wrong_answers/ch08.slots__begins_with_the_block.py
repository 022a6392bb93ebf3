# ruff: noqa
DIAGNOSIS = """
It begins with the first slot of the block in which `start` is. What lies before `start` in it is stored already, and is
not computed now.
"""


# --- first
def slots(self, seq, start, end):
    if not seq.block_table or start >= end:
        return []
    size = self.block_size
    return [seq.block_table[p // size] * size + p % size for p in range(start // size * size, end)]


# --- second
def slots(self, seq, start, end):
    slots = []
    if not seq.block_table or start == end:
        return slots
    for i in range(start // self.block_size, (end - 1) // self.block_size + 1):
        last = min(end, (i + 1) * self.block_size)
        for k in range(last - i * self.block_size):
            slots.append(seq.block_table[i] * self.block_size + k)
    return slots
