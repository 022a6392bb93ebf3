# ruff: noqa
DIAGNOSIS = """
Without a table, -1 comes back for each token. It is an index like any other, the last slot; without a pool there is no
slot at all, and the list is empty.
"""


# --- first
def slots(self, seq, start, end):
    if not seq.block_table:
        return [-1] * (end - start)
    size = self.block_size
    return [seq.block_table[p // size] * size + p % size for p in range(start, end)]


# --- second
def slots(self, seq, start, end):
    slots = []
    for position in range(start, end):
        if seq.block_table:
            first = seq.block_table[position // self.block_size] * self.block_size
            slots.append(first + position % self.block_size)
        else:
            slots.append(-1)
    return slots
