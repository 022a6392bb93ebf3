# ruff: noqa
DIAGNOSIS = """
Your number is right, but it is a float: a share of the memory is one, and // keeps it one. A list of 12.0 blocks
cannot be made, nor a tensor. The promise is an int.
"""


# --- first
def num_blocks_that_fit(total, in_use, activations, utilization, block_bytes):
    budget = total * utilization - in_use - activations
    return max(0, budget // block_bytes)


# --- second
def num_blocks_that_fit(total, in_use, activations, utilization, block_bytes):
    free = utilization * total - (in_use + activations)
    count = free // block_bytes
    return count if count > 0 else 0
