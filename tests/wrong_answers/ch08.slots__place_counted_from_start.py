# ruff: noqa
DIAGNOSIS = """
The entry of the table is right, but the place in the block is counted from `start`. It is position % block_size.
"""


# --- first
def slots(self, seq, start, end):
    if not seq.block_table:
        return []
    size = self.block_size
    return [seq.block_table[p // size] * size + (p - start) % size for p in range(start, end)]


# --- second
def slots(self, seq, start, end):
    slots = []
    for k in range(end - start):
        if seq.block_table:
            block_id = seq.block_table[(start + k) // self.block_size]
            slots.append(block_id * self.block_size + k % self.block_size)
    return slots
