# ruff: noqa
DIAGNOSIS = """
You look at the pool first. An answer that is complete, but whose last token would need one block more, is reported as
an error, and that token needs no block any more: nobody computes it. The rules have an order.
"""


# --- first
def finish_reason(self, seq):
    params = seq.sampling_params
    if seq.num_blocks > self.block_manager.num_blocks:
        seq.error = "the sequence has outgrown the KV-cache pool"
        return "error"
    if not params.ignore_eos and seq.last_token in self.eos:
        return "stop"
    if seq.last_token in params.stop_token_ids:
        seq.stop_reason = seq.last_token
        return "stop"
    if seq.num_completion_tokens >= params.max_tokens or seq.num_tokens >= self.max_model_len:
        return "length"
    return None


# --- second
def finish_reason(self, seq):
    wanted, last = seq.sampling_params, seq.last_token
    if seq.num_blocks - len(self.block_manager.blocks) > 0:
        seq.error = "too long for the pool"
        return "error"
    if last in self.eos and not wanted.ignore_eos:
        return "stop"
    if last in wanted.stop_token_ids:
        seq.stop_reason = last
        return "stop"
    left = min(wanted.max_tokens - seq.num_completion_tokens, self.max_model_len - seq.num_tokens)
    return None if left > 0 else "length"
