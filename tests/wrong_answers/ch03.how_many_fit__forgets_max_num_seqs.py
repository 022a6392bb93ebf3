# ruff: noqa
DIAGNOSIS = """
You count what has room, whatever max_num_seqs says. Even with an empty cache, no more requests than that run at once.
"""


# --- first
def how_many_fit(lengths, num_blocks, block_size, max_num_seqs):
    count = 0
    for length in lengths:
        num_blocks -= -(-length // block_size)
        if num_blocks < 0:
            break
        count += 1
    return count


# --- second
def how_many_fit(lengths, num_blocks, block_size, max_num_seqs):
    for count, length in enumerate(lengths):
        num_blocks -= (length + block_size - 1) // block_size
        if num_blocks < 0:
            return count
    return len(lengths)
