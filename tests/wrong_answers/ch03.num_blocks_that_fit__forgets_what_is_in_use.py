# ruff: noqa
DIAGNOSIS = """
You do not count what is in use. The weights are in the same memory, and perhaps another program: the cache would be
given bytes that are taken already, and its allocation fails.
"""


# --- first
def num_blocks_that_fit(total, in_use, activations, utilization, block_bytes):
    budget = int(total * utilization) - activations
    return max(0, budget // block_bytes)


# --- second
def num_blocks_that_fit(total, in_use, activations, utilization, block_bytes):
    limit = int(utilization * total)
    return 0 if activations >= limit else (limit - activations) // block_bytes
