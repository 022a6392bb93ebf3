# ruff: noqa
DIAGNOSIS = """
You subtract first and take the share last. The limit is a share of the whole memory; what is in use and what a step
needs come out of that. Your way, the engine fills more than the limit, and the more so the larger the weights are.
"""


# --- first
def num_blocks_that_fit(total, in_use, activations, utilization, block_bytes):
    budget = int((total - in_use - activations) * utilization)
    return max(0, budget // block_bytes)


# --- second
def num_blocks_that_fit(total, in_use, activations, utilization, block_bytes):
    rest = total - (in_use + activations)
    if rest <= 0:
        return 0
    return int(rest * utilization) // block_bytes
