# ruff: noqa
DIAGNOSIS = """
You skip a prompt that was cut altogether. But its chunk has been computed and stored; if nobody writes that down, the
same chunk is computed in every step, and the prompt never ends.
"""


# --- first
def postprocess(self, seqs, token_ids):
    for seq, token_id in zip(seqs, token_ids):
        if token_id is None:
            continue
        seq.num_cached_tokens += seq.num_scheduled_tokens
        seq.num_scheduled_tokens = 0
        seq.append_token(token_id)
        reason = self.finish_reason(seq)
        if reason:
            self.finish(seq, reason)


# --- second
def postprocess(self, seqs, token_ids):
    for i in range(len(seqs)):
        seq, token = seqs[i], token_ids[i]
        if token is None:
            continue
        stored, seq.num_scheduled_tokens = seq.num_scheduled_tokens, 0
        seq.num_cached_tokens = seq.num_cached_tokens + stored
        if token is not None:
            seq.append_token(token)
            why = self.finish_reason(seq)
            if why is not None:
                self.finish(seq, why)
