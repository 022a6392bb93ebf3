# ruff: noqa
DIAGNOSIS = """
You round up, so the last block has only a part of the bytes that it needs. A block is there as a whole or not at
all; a rest that is too small for one stays empty.
"""


# --- first
def num_blocks_that_fit(total, in_use, activations, utilization, block_bytes):
    budget = int(total * utilization) - in_use - activations
    return max(0, -(-budget // block_bytes))


# --- second
def num_blocks_that_fit(total, in_use, activations, utilization, block_bytes):
    budget = int(total * utilization) - in_use - activations
    whole, rest = divmod(max(budget, 0), block_bytes)
    return whole + (1 if rest else 0)
