# ruff: noqa
DIAGNOSIS = """
You change the options one after the other, and keep what was changed before. So an option is named that helps only
together with another one. Each of them is tried by itself, with all others as they are.
"""


# --- first
def what_would_help(total, in_use, activations, utilization, block_bytes, block_size):
    if num_blocks_that_fit(total, in_use, activations, utilization, block_bytes):
        return []
    names = []
    utilization = 1.0
    if num_blocks_that_fit(total, in_use, activations, utilization, block_bytes):
        names.append("gpu_memory_utilization")
    activations = 0
    if num_blocks_that_fit(total, in_use, activations, utilization, block_bytes):
        names.append("max_num_batched_tokens")
    block_bytes = block_bytes // block_size
    if num_blocks_that_fit(total, in_use, activations, utilization, block_bytes):
        names.append("kvcache_block_size")
    return names


# --- second
def what_would_help(total, in_use, activations, utilization, block_bytes, block_size):
    state = dict(utilization=utilization, activations=activations, block_bytes=block_bytes)
    changes = dict(utilization=1.0, activations=0, block_bytes=block_bytes // block_size)
    options = ["gpu_memory_utilization", "max_num_batched_tokens", "kvcache_block_size"]
    if num_blocks_that_fit(total, in_use, **state):
        return []
    found = []
    for option, (name, value) in zip(options, changes.items()):
        state[name] = value
        if num_blocks_that_fit(total, in_use, **state):
            found.append(option)
    return found
