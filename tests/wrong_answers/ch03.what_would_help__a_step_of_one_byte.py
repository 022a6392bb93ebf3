# ruff: noqa
DIAGNOSIS = """
You leave a byte of activations, or ask for more room than one block takes. An option helps already if a block fits to the
byte: ask num_blocks_that_fit with activations 0, and whether it is more than 0.
"""


# --- first
def what_would_help(total, in_use, activations, utilization, block_bytes, block_size):
    if num_blocks_that_fit(total, in_use, activations, utilization, block_bytes):
        return []
    found = []
    if num_blocks_that_fit(total, in_use, activations, 1.0, block_bytes):
        found.append("gpu_memory_utilization")
    if num_blocks_that_fit(total, in_use, 1, utilization, block_bytes):
        found.append("max_num_batched_tokens")
    if num_blocks_that_fit(total, in_use, activations, utilization, block_bytes // block_size):
        found.append("kvcache_block_size")
    return found


# --- second
def what_would_help(total, in_use, activations, utilization, block_bytes, block_size):
    if num_blocks_that_fit(total, in_use, activations, utilization, block_bytes):
        return []
    found = []
    if num_blocks_that_fit(total, in_use, activations, 1.0, block_bytes):
        found.append("gpu_memory_utilization")
    if int(total * utilization) - in_use > block_bytes:
        found.append("max_num_batched_tokens")
    if num_blocks_that_fit(total, in_use, activations, utilization, block_bytes // block_size):
        found.append("kvcache_block_size")
    return found
