# ruff: noqa
DIAGNOSIS = """
The last token, end - 1, has no slot. A range leaves its end out by itself.
"""


# --- first
def slots(self, seq, start, end):
    if not seq.block_table:
        return []
    size = self.block_size
    return [seq.block_table[p // size] * size + p % size for p in range(start, end - 1)]


# --- second
def slots(self, seq, start, end):
    slots, position = [], start
    while seq.block_table and position < end - 1:
        slots.append(seq.block_table[position // self.block_size] * self.block_size + position % self.block_size)
        position += 1
    return slots
