# ruff: noqa
DIAGNOSIS = """
You take the share of what is still free. The limit is a share of the whole memory, and everything counts against
it, also what is in use. Your way, the engine fills more than the limit, and the more so the larger the weights are.
"""


# --- first
def num_blocks_that_fit(total, in_use, activations, utilization, block_bytes):
    budget = int((total - in_use) * utilization) - activations
    return max(0, budget // block_bytes)


# --- second
def num_blocks_that_fit(total, in_use, activations, utilization, block_bytes):
    free = total - in_use
    rest = int(free * utilization) - activations
    return rest // block_bytes if rest > 0 else 0
