# ruff: noqa
DIAGNOSIS = """
What Request.take_in returns is not looked at: it is the stop string that the token has completed. The answer is over
then, and yours goes on.
"""


# --- first
def take_in(self, seqs, token_ids, logprobs):
    for seq, token_id, row in zip(seqs, token_ids, logprobs):
        if token_id is None:
            continue
        request = self.requests[seq.seq_id]
        request.take_in(token_id, row)
        request.num_final = seq.num_completion_tokens
        if seq.is_finished:
            del self.requests[seq.seq_id]


# --- second
def take_in(self, seqs, token_ids, logprobs):
    for i, seq in enumerate(seqs):
        token_id = token_ids[i]
        if token_id is None:
            continue
        request = self.requests[seq.seq_id]
        request.take_in(token_id, logprobs[i])
        request.num_final = len(seq.completion_token_ids)
        if seq.is_finished:
            self.requests.pop(seq.seq_id)
