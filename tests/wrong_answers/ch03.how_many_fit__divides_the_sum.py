# ruff: noqa
DIAGNOSIS = """
You add up all tokens and compare with all slots. Then the empty slots at the end of one request would hold tokens of the
next one. Blocks belong to one request; each request rounds up by itself.
"""


# --- first
def how_many_fit(lengths, num_blocks, block_size, max_num_seqs):
    count = total = 0
    for length in lengths[:max_num_seqs]:
        total += length
        if total > num_blocks * block_size:
            break
        count += 1
    return count


# --- second
def how_many_fit(lengths, num_blocks, block_size, max_num_seqs):
    slots, count = num_blocks * block_size, 0
    while count < min(len(lengths), max_num_seqs) and lengths[count] <= slots:
        slots -= lengths[count]
        count += 1
    return count
