# ruff: noqa
DIAGNOSIS = """
Every token is looked up in entry 0 of the table. The entry is the number of the block in the sequence: position //
block_size.
"""


# --- first
def slots(self, seq, start, end):
    if not seq.block_table:
        return []
    return [seq.block_table[0] * self.block_size + p % self.block_size for p in range(start, end)]


# --- second
def slots(self, seq, start, end):
    slots = []
    if seq.block_table:
        first = seq.block_table[0] * self.block_size
        for position in range(start, end):
            slots.append(first + position - position // self.block_size * self.block_size)
    return slots
