# ruff: noqa
DIAGNOSIS = """
For the whole memory you ask for more room than a block takes. If exactly one block fits, to the byte, the engine starts:
the comparison is with >=, or better, left to num_blocks_that_fit.
"""


# --- first
def what_would_help(total, in_use, activations, utilization, block_bytes, block_size):
    if num_blocks_that_fit(total, in_use, activations, utilization, block_bytes):
        return []
    found = []
    if total - in_use - activations > block_bytes:
        found.append("gpu_memory_utilization")
    if num_blocks_that_fit(total, in_use, 0, utilization, block_bytes):
        found.append("max_num_batched_tokens")
    if num_blocks_that_fit(total, in_use, activations, utilization, block_bytes // block_size):
        found.append("kvcache_block_size")
    return found


# --- second
def what_would_help(total, in_use, activations, utilization, block_bytes, block_size):
    if num_blocks_that_fit(total, in_use, activations, utilization, block_bytes):
        return []
    found = []
    if num_blocks_that_fit(total - 1, in_use, activations, 1.0, block_bytes):
        found.append("gpu_memory_utilization")
    if num_blocks_that_fit(total, in_use, 0, utilization, block_bytes):
        found.append("max_num_batched_tokens")
    if num_blocks_that_fit(total, in_use, activations, utilization, block_bytes // block_size):
        found.append("kvcache_block_size")
    return found
