# ruff: noqa
DIAGNOSIS = """
You mark the sequence as finished, and do not call finish: it keeps its blocks and stays in running. finish does all that
belongs to an end, reason and status too.
"""


# --- first
def postprocess(self, seqs, token_ids):
    for seq, token_id in zip(seqs, token_ids):
        seq.num_cached_tokens += seq.num_scheduled_tokens
        seq.num_scheduled_tokens = 0
        if token_id is None:
            continue
        seq.append_token(token_id)
        reason = self.finish_reason(seq)
        if reason is not None:
            seq.finish_reason = reason
            seq.status = SequenceStatus.FINISHED


# --- second
def postprocess(self, seqs, token_ids):
    for i in range(len(seqs)):
        seq, token = seqs[i], token_ids[i]
        stored, seq.num_scheduled_tokens = seq.num_scheduled_tokens, 0
        seq.num_cached_tokens = seq.num_cached_tokens + stored
        if token is not None:
            seq.append_token(token)
            why = self.finish_reason(seq)
            seq.status, seq.finish_reason = (SequenceStatus.FINISHED, why) if why else (seq.status, None)
