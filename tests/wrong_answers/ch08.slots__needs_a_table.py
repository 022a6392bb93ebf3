# ruff: noqa
DIAGNOSIS = """
An empty table breaks it. In the warm-up, before there is a pool, sequences have no blocks; then no token has a slot, and
the list is empty.
"""


# --- first
def slots(self, seq, start, end):
    size = self.block_size
    return [seq.block_table[p // size] * size + p % size for p in range(start, end)]


# --- second
def slots(self, seq, start, end):
    slots = []
    for position in range(start, end):
        block_id = seq.block_table[position // self.block_size]
        slots.append(block_id * self.block_size + position % self.block_size)
    return slots
