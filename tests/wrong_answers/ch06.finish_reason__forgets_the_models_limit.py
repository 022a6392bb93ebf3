# ruff: noqa
DIAGNOSIS = """
Nothing stops a sequence that has reached max_model_len. It would go on to positions that the model has never seen, and
to blocks that nobody planned for. There are two limits.
"""


# --- first
def finish_reason(self, seq):
    params = seq.sampling_params
    if not params.ignore_eos and seq.last_token in self.eos:
        return "stop"
    if seq.last_token in params.stop_token_ids:
        seq.stop_reason = seq.last_token
        return "stop"
    if seq.num_completion_tokens >= params.max_tokens:
        return "length"
    if seq.num_blocks > self.block_manager.num_blocks:
        seq.error = "the sequence has outgrown the KV-cache pool"
        return "error"
    return None


# --- second
def finish_reason(self, seq):
    token, wishes = seq.token_ids[-1], seq.sampling_params
    is_end = token in self.eos and not wishes.ignore_eos
    is_stop = token in wishes.stop_token_ids and not is_end
    if is_stop:
        seq.stop_reason = token
    if is_end or is_stop:
        return "stop"
    too_many = len(seq) - seq.num_prompt_tokens >= wishes.max_tokens
    if too_many:
        return "length"
    if len(self.block_manager.blocks) < seq.num_blocks:
        seq.error = f"{len(seq)} tokens are more than the KV cache holds"
        return "error"
    return None
