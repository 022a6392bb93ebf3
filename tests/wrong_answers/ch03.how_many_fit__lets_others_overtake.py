# ruff: noqa
DIAGNOSIS = """
A request that has no room is passed over, and a shorter one behind it is let in. First come, first served: the first
that has no room ends it. Otherwise a long request could wait forever.
"""


# --- first
def how_many_fit(lengths, num_blocks, block_size, max_num_seqs):
    count = 0
    for length in lengths:
        needed = -(-length // block_size)
        if needed <= num_blocks and count < max_num_seqs:
            num_blocks -= needed
            count += 1
    return count


# --- second
def how_many_fit(lengths, num_blocks, block_size, max_num_seqs):
    inside = []
    for length in lengths:
        blocks = (length + block_size - 1) // block_size
        if sum(inside) + blocks > num_blocks or len(inside) == max_num_seqs:
            continue
        inside.append(blocks)
    return len(inside)
