# ruff: noqa
# Right, and nothing like ours: a grader must not ask for our way of doing it.
def choose_options(workload, room, kv_bytes, step_bytes):
    """Without trying anything out: the more of the work is prompts, the more of the room is for steps, up to a quarter."""
    prompts, answers = (sum(lengths) for lengths in zip(*workload))
    share = min(0.25, prompts / (prompts + answers))
    tokens = max(256, min(4096, int(room * share / step_bytes)))
    return {"max_num_batched_tokens": tokens, "kvcache_block_size": 16, "max_num_seqs": 400}
