# ruff: noqa
DIAGNOSIS = """
Nobody asks whether the new token was the last one. The answer goes on behind its end, and its blocks are never given
back.
"""


# --- first
def postprocess(self, seqs, token_ids):
    for seq, token_id in zip(seqs, token_ids):
        seq.num_cached_tokens += seq.num_scheduled_tokens
        seq.num_scheduled_tokens = 0
        if token_id is None:
            continue
        seq.append_token(token_id)


# --- second
def postprocess(self, seqs, token_ids):
    for i in range(len(seqs)):
        seq, token = seqs[i], token_ids[i]
        stored, seq.num_scheduled_tokens = seq.num_scheduled_tokens, 0
        seq.num_cached_tokens = seq.num_cached_tokens + stored
        if token is not None:
            seq.append_token(token)
