# ruff: noqa
DIAGNOSIS = """
You end the sequence yourself. Whoever asked for the reason ends it with finish, and then it is no longer in the queue
that it is to be taken out of. Only say why; stop_reason is all that changes here.
"""


# --- first
def finish_reason(self, seq):
    params, reason = seq.sampling_params, None
    if not params.ignore_eos and seq.last_token in self.eos:
        reason = "stop"
    elif seq.last_token in params.stop_token_ids:
        seq.stop_reason = seq.last_token
        reason = "stop"
    elif seq.num_completion_tokens >= params.max_tokens or seq.num_tokens >= self.max_model_len:
        reason = "length"
    elif seq.num_blocks > self.block_manager.num_blocks:
        seq.error = "the sequence has outgrown the KV-cache pool"
        reason = "error"
    if reason:
        self.finish(seq, reason)
    return reason


# --- second
def finish_reason(self, seq):
    wanted, last = seq.sampling_params, seq.last_token

    def end(reason):
        self.finish(seq, reason)
        return reason

    if last in self.eos and not wanted.ignore_eos:
        return end("stop")
    if last in wanted.stop_token_ids:
        seq.stop_reason = last
        return end("stop")
    left = min(wanted.max_tokens - seq.num_completion_tokens, self.max_model_len - seq.num_tokens)
    if left <= 0:
        return end("length")
    if seq.num_blocks <= self.block_manager.num_blocks:
        return None
    seq.error = "too long for the pool"
    return end("error")
