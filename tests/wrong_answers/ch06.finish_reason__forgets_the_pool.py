# ruff: noqa
DIAGNOSIS = """
A sequence that needs more blocks than the whole pool has goes on with you. It can never get them: it preempts all
others, then itself, and the next time it is admitted the same begins anew. The fourth rule ends it with an error.
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
    return None
