# ruff: noqa
DIAGNOSIS = """
You ask for a reason to end also where no token was sampled. Then the last token of the prompt decides, and a prompt that
happens to end with an end token is over before it was read.
"""


# --- first
def postprocess(self, seqs, token_ids):
    for seq, token_id in zip(seqs, token_ids):
        seq.num_cached_tokens += seq.num_scheduled_tokens
        seq.num_scheduled_tokens = 0
        if token_id is not None:
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
        if token is not None:
            seq.append_token(token)
        why = self.finish_reason(seq)
        if why is not None:
            self.finish(seq, why)
