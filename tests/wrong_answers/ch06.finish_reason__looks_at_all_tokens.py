# ruff: noqa
DIAGNOSIS = """
You look for an end token among all tokens of the sequence. A prompt may have some in its middle, as a conversation does,
and then its answer is over with the first word. Only the last token decides.
"""


# --- first
def finish_reason(self, seq):
    params = seq.sampling_params
    if not params.ignore_eos and any(token_id in self.eos for token_id in seq.token_ids):
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
    wanted = seq.sampling_params
    if self.eos & set(seq.token_ids) and not wanted.ignore_eos:
        return "stop"
    if seq.last_token in wanted.stop_token_ids:
        seq.stop_reason = seq.last_token
        return "stop"
    left = min(wanted.max_tokens - seq.num_completion_tokens, self.max_model_len - seq.num_tokens)
    if left <= 0:
        return "length"
    if seq.num_blocks <= self.block_manager.num_blocks:
        return None
    seq.error = "too long for the pool"
    return "error"
