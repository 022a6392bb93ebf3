# ruff: noqa
DIAGNOSIS = """
When the last allowed token completes a stop string, your reader is told "length", as if something were missing. The
answer is complete: "stop" wins, and stop_reason says which string it was.
"""


# --- first
def take_in(self, seqs, token_ids, logprobs):
    for seq, token_id, row in zip(seqs, token_ids, logprobs):
        if token_id is None:
            continue
        request = self.requests[seq.seq_id]
        stop = request.take_in(token_id, row)
        if stop is not None and not seq.is_finished:
            self.scheduler.finish(seq, "stop")
            seq.stop_reason = stop
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
        stop = request.take_in(token_id, logprobs[i])
        if stop is not None and not seq.is_finished:
            self.scheduler.finish(seq, "stop")
            seq.stop_reason = stop
        request.num_final = len(seq.completion_token_ids)
        if seq.is_finished:
            self.requests.pop(seq.seq_id)
