# ruff: noqa
DIAGNOSIS = """
You count the token that was just sampled as stored. Its keys and values do not exist: it goes through the model in the
next step. The sequence would skip it, and attend to a slot that nobody has written.
"""


# --- first
def postprocess(self, seqs, token_ids):
    for seq, token_id in zip(seqs, token_ids):
        seq.num_cached_tokens += seq.num_scheduled_tokens
        seq.num_scheduled_tokens = 0
        if token_id is None:
            continue
        seq.append_token(token_id)
        seq.num_cached_tokens += 1
        reason = self.finish_reason(seq)
        if reason:
            self.finish(seq, reason)


# --- second
def postprocess(self, seqs, token_ids):
    for i in range(len(seqs)):
        seq, token = seqs[i], token_ids[i]
        stored, seq.num_scheduled_tokens = seq.num_scheduled_tokens, 0
        seq.num_cached_tokens = seq.num_cached_tokens + stored + (token is not None)
        if token is not None:
            seq.append_token(token)
            why = self.finish_reason(seq)
            if why is not None:
                self.finish(seq, why)
