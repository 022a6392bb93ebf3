# ruff: noqa
DIAGNOSIS = """
You divide and round down, so the tokens that are left over have no place. A request of 17 tokens takes two blocks of
16.
"""


# --- first
def how_many_fit(lengths, num_blocks, block_size, max_num_seqs):
    count = 0
    for length in lengths[:max_num_seqs]:
        num_blocks -= length // block_size
        if num_blocks < 0:
            break
        count += 1
    return count


# --- second
def how_many_fit(lengths, num_blocks, block_size, max_num_seqs):
    count = 0
    while count < len(lengths) and count < max_num_seqs:
        needed = int(lengths[count] / block_size)
        if needed > num_blocks:
            return count
        num_blocks -= needed
        count += 1
    return count
