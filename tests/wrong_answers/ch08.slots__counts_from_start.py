# ruff: noqa
DIAGNOSIS = """
Both the entry of the table and the place in the block are counted from `start`. They are those of the position in the
whole sequence: position // block_size and position % block_size.
"""


# --- first
def slots(self, seq, start, end):
    if not seq.block_table:
        return []
    size = self.block_size
    return [seq.block_table[i // size] * size + i % size for i in range(end - start)]


# --- second
def slots(self, seq, start, end):
    slots = []
    if seq.block_table:
        for position in range(start, end):
            index, rest = divmod(position - start, self.block_size)
            slots.append(seq.block_table[index] * self.block_size + rest)
    return slots
