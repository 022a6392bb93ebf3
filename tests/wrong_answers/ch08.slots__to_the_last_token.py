# ruff: noqa
DIAGNOSIS = """
It goes on to the end of the sequence, whatever `end` is. A prompt that is cut is computed only as far as `end`.
"""


# --- first
def slots(self, seq, start, end):
    if not seq.block_table:
        return []
    size = self.block_size
    return [seq.block_table[p // size] * size + p % size for p in range(start, seq.num_tokens)]


# --- second
def slots(self, seq, start, end):
    slots, position = [], start
    while seq.block_table and position < len(seq):
        first = seq.block_table[position // self.block_size] * self.block_size
        slots.append(first + position % self.block_size)
        position += 1
    return slots
