# ruff: noqa
DIAGNOSIS = """
You look at the lengths first. An answer that is complete, and happens to end at its last allowed token, is reported as
cut off. The rules have an order.
"""


# --- first
def finish_reason(self, seq):
    params = seq.sampling_params
    if seq.num_completion_tokens >= params.max_tokens or seq.num_tokens >= self.max_model_len:
        return "length"
    if not params.ignore_eos and seq.last_token in self.eos:
        return "stop"
    if seq.last_token in params.stop_token_ids:
        seq.stop_reason = seq.last_token
        return "stop"
    if seq.num_blocks > self.block_manager.num_blocks:
        seq.error = "the sequence has outgrown the KV-cache pool"
        return "error"
    return None


# --- second
def finish_reason(self, seq):
    token, wishes = seq.token_ids[-1], seq.sampling_params
    if len(seq) >= min(seq.num_prompt_tokens + wishes.max_tokens, self.max_model_len):
        return "length"
    is_end = token in self.eos and not wishes.ignore_eos
    is_stop = token in wishes.stop_token_ids and not is_end
    if is_stop:
        seq.stop_reason = token
    if is_end or is_stop:
        return "stop"
    if len(self.block_manager.blocks) < seq.num_blocks:
        seq.error = f"{len(seq)} tokens are more than the KV cache holds"
        return "error"
    return None
