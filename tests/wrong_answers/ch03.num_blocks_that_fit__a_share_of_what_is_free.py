# ruff: noqa
DIAGNOSIS = """
You take the share of what is still free. The limit is a share of the whole memory, and everything counts against
it, also what is in use. Your way, the engine takes more than it may as soon as the weights are small, and two
engines on one device get in each other's way.
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
