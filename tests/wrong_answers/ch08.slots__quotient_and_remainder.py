# ruff: noqa
DIAGNOSIS = """
Quotient and remainder have changed places: position // block_size is the number of the block, position % block_size the
place in it.
"""


# --- first
def slots(self, seq, start, end):
    if not seq.block_table:
        return []
    size = self.block_size
    return [seq.block_table[p % size] * size + p // size for p in range(start, end)]


# --- second
def slots(self, seq, start, end):
    slots = []
    for position in range(start, end) if seq.block_table else ():
        rest, index = divmod(position, self.block_size)
        slots.append(seq.block_table[index] * self.block_size + rest)
    return slots
