# ruff: noqa
DIAGNOSIS = """
The block id is added as it is. Block b begins with slot b * block_size.
"""


# --- first
def slots(self, seq, start, end):
    if not seq.block_table:
        return []
    return [seq.block_table[p // self.block_size] + p % self.block_size for p in range(start, end)]


# --- second
def slots(self, seq, start, end):
    slots = []
    for p in range(start, end) if seq.block_table else ():
        index, rest = divmod(p, self.block_size)
        slots.append(seq.block_table[index] + rest)
    return slots
