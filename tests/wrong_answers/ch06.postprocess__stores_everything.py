# ruff: noqa
DIAGNOSIS = """
You write the whole sequence down as stored. A prompt that was cut has been computed up to a point only; the rest would
never be computed. num_scheduled_tokens says how far this step got.
"""


# --- first
def postprocess(self, seqs, token_ids):
    for seq, token_id in zip(seqs, token_ids):
        seq.num_cached_tokens = seq.num_tokens
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
        seq.num_scheduled_tokens = 0
        seq.num_cached_tokens = len(seq)
        if token is not None:
            seq.append_token(token)
            why = self.finish_reason(seq)
            if why is not None:
                self.finish(seq, why)
