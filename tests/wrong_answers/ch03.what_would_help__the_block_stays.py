# ruff: noqa
DIAGNOSIS = """
You do not try smaller blocks. Where some tokens would fit, but not a whole block of them, kvcache_block_size is what
helps.
"""


# --- first
def what_would_help(total, in_use, activations, utilization, block_bytes, block_size):
    if num_blocks_that_fit(total, in_use, activations, utilization, block_bytes):
        return []
    names = []
    if num_blocks_that_fit(total, in_use, activations, 1.0, block_bytes):
        names.append("gpu_memory_utilization")
    if num_blocks_that_fit(total, in_use, 0, utilization, block_bytes):
        names.append("max_num_batched_tokens")
    return names


# --- second
def what_would_help(total, in_use, activations, utilization, block_bytes, block_size):
    def starts(*arguments):
        return num_blocks_that_fit(*arguments) > 0

    if starts(total, in_use, activations, utilization, block_bytes):
        return []
    limit = starts(total, in_use, activations, 1.0, block_bytes)
    step = starts(total, in_use, 0, utilization, block_bytes)
    return ["gpu_memory_utilization"] * limit + ["max_num_batched_tokens"] * step
