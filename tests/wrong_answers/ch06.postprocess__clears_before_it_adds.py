# ruff: noqa
DIAGNOSIS = """
You set num_scheduled_tokens to 0, and then add it to num_cached_tokens: that adds nothing. First add it, then clear it.
"""


# --- first
def postprocess(self, seqs, token_ids):
    for seq, token_id in zip(seqs, token_ids):
        seq.num_scheduled_tokens = 0
        seq.num_cached_tokens += seq.num_scheduled_tokens
        if token_id is None:
            continue
        seq.append_token(token_id)
        reason = self.finish_reason(seq)
        if reason is not None:
            self.finish(seq, reason)


# --- second
def postprocess(self, seqs, token_ids):
    for seq in seqs:
        seq.num_scheduled_tokens = 0
    for i, seq in enumerate(seqs):
        seq.num_cached_tokens = seq.num_cached_tokens + seq.num_scheduled_tokens
        if token_ids[i] is not None:
            seq.append_token(token_ids[i])
            why = self.finish_reason(seq)
            if why:
                self.finish(seq, why)
