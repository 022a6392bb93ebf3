# ruff: noqa
DIAGNOSIS = """
You let a request in only if a block is left afterwards. The last block may be taken, too.
"""


# --- first
def how_many_fit(lengths, num_blocks, block_size, max_num_seqs):
    count = 0
    for length in lengths[:max_num_seqs]:
        num_blocks -= -(-length // block_size)
        if num_blocks <= 0:
            break
        count += 1
    return count


# --- second
def how_many_fit(lengths, num_blocks, block_size, max_num_seqs):
    count = 0
    for length in lengths[:max_num_seqs]:
        needed = -(-length // block_size)
        if needed < num_blocks:
            num_blocks -= needed
            count += 1
        else:
            break
    return count
