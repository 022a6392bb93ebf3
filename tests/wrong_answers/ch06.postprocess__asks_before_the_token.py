# ruff: noqa
DIAGNOSIS = """
You ask for the reason before the new token is there, so the end is noticed one token too late: every answer is too
long by one.
"""


# --- first
def postprocess(self, seqs, token_ids):
    for seq, token_id in zip(seqs, token_ids):
        seq.num_cached_tokens += seq.num_scheduled_tokens
        seq.num_scheduled_tokens = 0
        if token_id is None:
            continue
        reason = self.finish_reason(seq) if seq.num_completion_tokens else None
        seq.append_token(token_id)
        if reason:
            self.finish(seq, reason)


# --- second
def postprocess(self, seqs, token_ids):
    for i in range(len(seqs)):
        seq, token = seqs[i], token_ids[i]
        stored, seq.num_scheduled_tokens = seq.num_scheduled_tokens, 0
        seq.num_cached_tokens = seq.num_cached_tokens + stored
        if token is not None:
            why = None if seq.num_completion_tokens == 0 else self.finish_reason(seq)
            seq.append_token(token)
            if why is not None:
                self.finish(seq, why)
