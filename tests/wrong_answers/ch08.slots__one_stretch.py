# ruff: noqa
DIAGNOSIS = """
You look up the first block and count on from there. The blocks of a sequence need not be neighbors: at every border the
table has to be asked again.
"""


# --- first
def slots(self, seq, start, end):
    if not seq.block_table or start == end:
        return []
    first = seq.block_table[start // self.block_size] * self.block_size + start % self.block_size
    return list(range(first, first + end - start))


# --- second
def slots(self, seq, start, end):
    if len(seq.block_table) == 0 or end <= start:
        return []
    block_id = seq.block_table[start // self.block_size]
    shift = block_id * self.block_size - start // self.block_size * self.block_size
    return [position + shift for position in range(start, end)]
