# ruff: noqa
DIAGNOSIS = """
The number of the last block is rounded down, so the tokens of a block that is not full have no slots.
"""


# --- first
def slots(self, seq, start, end):
    slots = []
    if not seq.block_table:
        return slots
    size = self.block_size
    for i in range(start // size, end // size):
        first, last = max(start, i * size), min(end, (i + 1) * size)
        slots += range(first + (seq.block_table[i] - i) * size, last + (seq.block_table[i] - i) * size)
    return slots


# --- second
def slots(self, seq, start, end):
    if not seq.block_table:
        return []
    size = self.block_size
    end = end // size * size
    return [seq.block_table[p // size] * size + p % size for p in range(start, end)]
