# ruff: noqa
DIAGNOSIS = """
The slots of each block are a list of their own. One flat list is wanted, a number for each token: += or extend, not
append.
"""


# --- first
def slots(self, seq, start, end):
    slots = []
    if not seq.block_table:
        return slots
    size = self.block_size
    for i in range(start // size, -(-end // size)):
        first, last = max(start, i * size), min(end, (i + 1) * size)
        if first < last:
            shift = (seq.block_table[i] - i) * size
            slots.append(list(range(first + shift, last + shift)))
    return slots


# --- second
def slots(self, seq, start, end):
    by_block = {}
    for position in range(start, end) if seq.block_table else ():
        index, rest = divmod(position, self.block_size)
        by_block.setdefault(index, []).append(seq.block_table[index] * self.block_size + rest)
    return list(by_block.values())
