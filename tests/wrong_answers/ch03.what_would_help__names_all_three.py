# ruff: noqa
DIAGNOSIS = """
You name all three whenever nothing fits. That is what the engine's own message does; yours is to name only those with
which it would start.
"""


# --- first
def what_would_help(total, in_use, activations, utilization, block_bytes, block_size):
    if num_blocks_that_fit(total, in_use, activations, utilization, block_bytes):
        return []
    return ["gpu_memory_utilization", "max_num_batched_tokens", "kvcache_block_size"]


# --- second
def what_would_help(total, in_use, activations, utilization, block_bytes, block_size):
    starts = in_use + activations + block_bytes <= int(total * utilization)
    return [] if starts else "gpu_memory_utilization max_num_batched_tokens kvcache_block_size".split()
