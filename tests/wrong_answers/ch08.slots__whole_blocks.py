# ruff: noqa
DIAGNOSIS = """
Whole blocks come back, from the first that is touched to the last. Asked for are the slots of the tokens `start` to
`end - 1` only.
"""


# --- first
def slots(self, seq, start, end):
    if not seq.block_table or start >= end:
        return []
    size = self.block_size
    blocks = seq.block_table[start // size : (end + size - 1) // size]
    return [block_id * size + k for block_id in blocks for k in range(size)]


# --- second
def slots(self, seq, start, end):
    slots = []
    if seq.block_table and end > start:
        for i in range(start // self.block_size, (end - 1) // self.block_size + 1):
            first = seq.block_table[i] * self.block_size
            slots += range(first, first + self.block_size)
    return slots
