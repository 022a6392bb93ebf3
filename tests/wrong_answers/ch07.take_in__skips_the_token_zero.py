# ruff: noqa
DIAGNOSIS = """
0 is the id of a token, and counts as False in Python: `if not token_id` leaves it out. Ask whether it is None.
"""


# --- first
def take_in(self, seqs, token_ids, logprobs):
    for seq, token_id, row in zip(seqs, token_ids, logprobs):
        if not token_id:
            continue
        request = self.requests[seq.seq_id]
        stop = request.take_in(token_id, row)
        if stop is not None:
            if not seq.is_finished:
                self.scheduler.finish(seq, "stop")
            seq.finish_reason, seq.stop_reason = "stop", stop
        request.num_final = seq.num_completion_tokens
        if seq.is_finished:
            del self.requests[seq.seq_id]


# --- second
def take_in(self, seqs, token_ids, logprobs):
    for i, seq in enumerate(seqs):
        token_id = token_ids[i]
        if token_id == 0 or token_id is None:
            continue
        request = self.requests[seq.seq_id]
        stop = request.take_in(token_id, logprobs[i])
        if stop is not None:
            if not seq.is_finished:
                self.scheduler.finish(seq, "stop")
            seq.stop_reason = stop
            seq.finish_reason = "stop"
        request.num_final = len(seq.completion_token_ids)
        if seq.is_finished:
            self.requests.pop(seq.seq_id)
