# ruff: noqa
DIAGNOSIS = """
You stop at the first option that helps. Others may help as well, and perhaps cost less; all of them are asked for.
"""


# --- first
def what_would_help(total, in_use, activations, utilization, block_bytes, block_size):
    if num_blocks_that_fit(total, in_use, activations, utilization, block_bytes):
        return []
    if num_blocks_that_fit(total, in_use, activations, 1.0, block_bytes):
        return ["gpu_memory_utilization"]
    if num_blocks_that_fit(total, in_use, 0, utilization, block_bytes):
        return ["max_num_batched_tokens"]
    if num_blocks_that_fit(total, in_use, activations, utilization, block_bytes // block_size):
        return ["kvcache_block_size"]
    return []


# --- second
def what_would_help(total, in_use, activations, utilization, block_bytes, block_size):
    if num_blocks_that_fit(total, in_use, activations, utilization, block_bytes):
        return []
    changed = {
        "gpu_memory_utilization": (total, in_use, activations, 1.0, block_bytes),
        "max_num_batched_tokens": (total, in_use, 0, utilization, block_bytes),
        "kvcache_block_size": (total, in_use, activations, utilization, block_bytes // block_size),
    }
    return [name for name, arguments in changed.items() if num_blocks_that_fit(*arguments)][:1]
