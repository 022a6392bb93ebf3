# ruff: noqa
DIAGNOSIS = """
You compare the token with self.eos, and they are never equal: self.eos is a set, because a model may have several end
tokens. Nothing ever stops by itself.
"""


# --- first
def finish_reason(self, seq):
    params = seq.sampling_params
    if not params.ignore_eos and seq.last_token == self.eos:
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
    is_end = self.eos == token and not wishes.ignore_eos
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
