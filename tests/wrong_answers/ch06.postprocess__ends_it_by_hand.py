# ruff: noqa
DIAGNOSIS = """
You take the sequence out of running, and mark it as finished, but it keeps its blocks: the pool gets smaller with every
answer. finish does all that belongs to an end.
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
        if reason:
            seq.status, seq.finish_reason = SequenceStatus.FINISHED, reason
            self.running.remove(seq)


# --- second
def postprocess(self, seqs, token_ids):
    for i in range(len(seqs)):
        seq, token = seqs[i], token_ids[i]
        stored, seq.num_scheduled_tokens = seq.num_scheduled_tokens, 0
        seq.num_cached_tokens = seq.num_cached_tokens + stored
        if token is not None:
            seq.append_token(token)
            why = self.finish_reason(seq)
            if why is not None:
                self.running.remove(seq)
                seq.finish_reason = why
                seq.status = SequenceStatus.FINISHED
