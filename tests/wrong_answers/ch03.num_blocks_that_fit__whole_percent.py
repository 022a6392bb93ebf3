# ruff: noqa
DIAGNOSIS = """
You take the share in whole percent, so a share of 0.905 becomes one of 0.9: half a percent of 80 GB is 400 MB of cache.
Multiply total by the share as it is, and round down once, at the end.
"""


# --- first
def num_blocks_that_fit(total, in_use, activations, utilization, block_bytes):
    percent = int(utilization * 100 + 1e-6)
    budget = total * percent // 100 - in_use - activations
    return max(0, budget // block_bytes)


# --- second
def num_blocks_that_fit(total, in_use, activations, utilization, block_bytes):
    share = int((100 * utilization + 1e-6) // 1)
    left = (total * share - 100 * (in_use + activations)) // 100
    return left // block_bytes if left > 0 else 0
