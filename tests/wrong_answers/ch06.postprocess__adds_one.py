# ruff: noqa
DIAGNOSIS = """
You count one stored token a sequence. That is right in decode, but a prefill computes many at once. How many it was
stands in num_scheduled_tokens.
"""


# --- first
def postprocess(self, seqs, token_ids):
    for seq, token_id in zip(seqs, token_ids):
        seq.num_cached_tokens += 1
        seq.num_scheduled_tokens = 0
        if token_id is None:
            continue
        seq.append_token(token_id)
        reason = self.finish_reason(seq)
        if reason:
            self.finish(seq, reason)


# --- second
def postprocess(self, seqs, token_ids):
    for i in range(len(seqs)):
        seq, token = seqs[i], token_ids[i]
        stored, seq.num_scheduled_tokens = seq.num_scheduled_tokens, 0
        seq.num_cached_tokens = seq.num_cached_tokens + min(1, stored)
        if token is not None:
            seq.append_token(token)
            why = self.finish_reason(seq)
            if why is not None:
                self.finish(seq, why)
