# ruff: noqa
DIAGNOSIS = """
The tokens are counted in token_ids. A worker's copy of a sequence may have none: `start` and `end` say which are meant.
"""


# --- first
def slots(self, seq, start, end):
    if not seq.block_table:
        return []
    size = self.block_size
    count = len(seq.token_ids[start:end])
    return [seq.block_table[p // size] * size + p % size for p in range(start, start + count)]


# --- second
def slots(self, seq, start, end):
    slots = []
    for position, _ in enumerate(seq.token_ids):
        if start <= position < end and seq.block_table:
            first = seq.block_table[position // self.block_size] * self.block_size
            slots.append(first + position % self.block_size)
    return slots
