# ruff: noqa
DIAGNOSIS = """
You end a sequence with an error because no block is free at the moment. Others will give some back, or one of them has
to go. Only a sequence that needs more blocks than the whole pool has cannot be helped.
"""


# --- first
def finish_reason(self, seq):
    params = seq.sampling_params
    if not params.ignore_eos and seq.last_token in self.eos:
        return "stop"
    if seq.last_token in params.stop_token_ids:
        seq.stop_reason = seq.last_token
        return "stop"
    if seq.num_completion_tokens >= params.max_tokens or seq.num_tokens >= self.max_model_len:
        return "length"
    if not self.block_manager.can_append(seq):
        seq.error = "no block is left"
        return "error"
    return None


# --- second
def finish_reason(self, seq):
    wanted, last = seq.sampling_params, seq.last_token
    if last in self.eos and not wanted.ignore_eos:
        return "stop"
    if last in wanted.stop_token_ids:
        seq.stop_reason = last
        return "stop"
    left = min(wanted.max_tokens - seq.num_completion_tokens, self.max_model_len - seq.num_tokens)
    if left <= 0:
        return "length"
    if len(seq.block_table) >= seq.num_blocks or self.block_manager.free_block_ids:
        return None
    seq.error = "too long for the pool"
    return "error"
