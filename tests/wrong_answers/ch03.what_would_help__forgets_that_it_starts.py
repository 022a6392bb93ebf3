# ruff: noqa
DIAGNOSIS = """
You try the options out, but not the engine as it is. Where a block fits already, nothing has to be changed, and nothing
is to be named.
"""


# --- first
def what_would_help(total, in_use, activations, utilization, block_bytes, block_size):
    changed = {
        "gpu_memory_utilization": (total, in_use, activations, 1.0, block_bytes),
        "max_num_batched_tokens": (total, in_use, 0, utilization, block_bytes),
        "kvcache_block_size": (total, in_use, activations, utilization, block_bytes // block_size),
    }
    return [name for name, arguments in changed.items() if num_blocks_that_fit(*arguments)]


# --- second
def what_would_help(total, in_use, activations, utilization, block_bytes, block_size):
    names = []
    if num_blocks_that_fit(total, in_use, activations, 1.0, block_bytes) > 0:
        names.append("gpu_memory_utilization")
    if num_blocks_that_fit(total, in_use, 0, utilization, block_bytes) > 0:
        names.append("max_num_batched_tokens")
    if num_blocks_that_fit(total, in_use, activations, utilization, block_bytes / block_size) > 0:
        names.append("kvcache_block_size")
    return names
