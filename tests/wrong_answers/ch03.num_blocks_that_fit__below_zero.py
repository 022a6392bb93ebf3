# ruff: noqa
DIAGNOSIS = """
When too much is in use already, your number of blocks is negative. No number of blocks is: the answer is then that
none fits, 0, and the engine can say which knob to turn.
"""


# --- first
def num_blocks_that_fit(total, in_use, activations, utilization, block_bytes):
    budget = int(total * utilization) - in_use - activations
    return budget // block_bytes


# --- second
def num_blocks_that_fit(total, in_use, activations, utilization, block_bytes):
    limit = int(utilization * total)
    return (limit - activations - in_use) // block_bytes
