# ruff: noqa
DIAGNOSIS = """
You decide yourself when an answer is over. The rules stand in finish_reason, once for all: where they are changed, or
one is added, your code does not hear of it. Ask self.finish_reason(seq).
"""


# --- first
def postprocess(self, seqs, token_ids):
    for seq, token_id in zip(seqs, token_ids):
        seq.num_cached_tokens += seq.num_scheduled_tokens
        seq.num_scheduled_tokens = 0
        if token_id is None:
            continue
        seq.append_token(token_id)
        params = seq.sampling_params
        if token_id in self.eos and not params.ignore_eos:
            self.finish(seq, "stop")
        elif token_id in params.stop_token_ids:
            seq.stop_reason = token_id
            self.finish(seq, "stop")
        elif seq.num_completion_tokens >= params.max_tokens or seq.num_tokens >= self.max_model_len:
            self.finish(seq, "length")


# --- second
def postprocess(self, seqs, token_ids):
    for i in range(len(seqs)):
        seq, token = seqs[i], token_ids[i]
        stored, seq.num_scheduled_tokens = seq.num_scheduled_tokens, 0
        seq.num_cached_tokens = seq.num_cached_tokens + stored
        if token is not None:
            seq.append_token(token)
            wanted = seq.sampling_params
            is_end = not wanted.ignore_eos and token in self.eos
            left = min(wanted.max_tokens - seq.num_completion_tokens, self.max_model_len - len(seq))
            if is_end or token in wanted.stop_token_ids:
                self.finish(seq, "stop")
            elif left <= 0:
                self.finish(seq, "length")
