# ruff: noqa
DIAGNOSIS = """
You leave no room for the activations. They are not in memory now, so it looks as if they cost nothing; but the next
large step needs them, finds the cache where it wants to compute, and the engine dies in the middle of its work.
"""


# --- first
def num_blocks_that_fit(total, in_use, activations, utilization, block_bytes):
    budget = int(total * utilization) - in_use
    return max(0, budget // block_bytes)


# --- second
def num_blocks_that_fit(total, in_use, activations, utilization, block_bytes):
    limit = int(utilization * total)
    return 0 if in_use >= limit else (limit - in_use) // block_bytes
