# ruff: noqa
DIAGNOSIS = """
A prompt that was cut has no sampled token: there is None in its place, and you append it. Look before you append.
"""


# --- first
def postprocess(self, seqs, token_ids):
    for seq, token_id in zip(seqs, token_ids):
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
        stored, seq.num_scheduled_tokens = seq.num_scheduled_tokens, 0
        seq.num_cached_tokens = seq.num_cached_tokens + stored
        if seq is not None:
            seq.append_token(token)
            why = self.finish_reason(seq)
            if why is not None:
                self.finish(seq, why)
