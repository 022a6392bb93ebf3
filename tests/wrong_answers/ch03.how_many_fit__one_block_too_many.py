# ruff: noqa
DIAGNOSIS = """
A request that fills its blocks to the last slot gets one more. 16 tokens fit into one block of 16.
"""


# --- first
def how_many_fit(lengths, num_blocks, block_size, max_num_seqs):
    count = 0
    for length in lengths[:max_num_seqs]:
        num_blocks -= length // block_size + 1
        if num_blocks < 0:
            break
        count += 1
    return count


# --- second
def how_many_fit(lengths, num_blocks, block_size, max_num_seqs):
    count = 0
    for length in lengths:
        needed = (length + block_size) // block_size
        if needed > num_blocks or count == max_num_seqs:
            break
        num_blocks, count = num_blocks - needed, count + 1
    return count
