# ruff: noqa
DIAGNOSIS = """
The slot of the token `end` is there, too. `end` is the first token that does not count, as in a range.
"""


# --- first
def slots(self, seq, start, end):
    if not seq.block_table:
        return []
    size, table = self.block_size, seq.block_table
    return [table[p // size % len(table)] * size + p % size for p in range(start, end + 1)]


# --- second
def slots(self, seq, start, end):
    slots, position = [], start
    while seq.block_table and position <= end:
        index = position // self.block_size % len(seq.block_table)
        slots.append(seq.block_table[index] * self.block_size + position % self.block_size)
        position += 1
    return slots
