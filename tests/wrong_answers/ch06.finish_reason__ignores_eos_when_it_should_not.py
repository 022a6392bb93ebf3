# ruff: noqa
DIAGNOSIS = """
Your condition about ignore_eos is the wrong way round: end tokens end only those answers that ask to ignore them. It is
not ignore_eos that has to hold.
"""


# --- first
def finish_reason(self, seq):
    params = seq.sampling_params
    if params.ignore_eos and seq.last_token in self.eos:
        return "stop"
    if seq.last_token in params.stop_token_ids:
        seq.stop_reason = seq.last_token
        return "stop"
    if seq.num_completion_tokens >= params.max_tokens or seq.num_tokens >= self.max_model_len:
        return "length"
    if seq.num_blocks > self.block_manager.num_blocks:
        seq.error = "the sequence has outgrown the KV-cache pool"
        return "error"
    return None


# --- second
def finish_reason(self, seq):
    token, wishes = seq.token_ids[-1], seq.sampling_params
    is_end = False if not wishes.ignore_eos else token in self.eos
    is_stop = token in wishes.stop_token_ids and not is_end
    if is_stop:
        seq.stop_reason = token
    if is_end or is_stop:
        return "stop"
    too_many = len(seq) - seq.num_prompt_tokens >= wishes.max_tokens
    too_long = len(seq) >= self.max_model_len
    if too_many or too_long:
        return "length"
    if len(self.block_manager.blocks) < seq.num_blocks:
        seq.error = f"{len(seq)} tokens are more than the KV cache holds"
        return "error"
    return None
