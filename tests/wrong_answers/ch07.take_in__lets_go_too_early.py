# ruff: noqa
DIAGNOSIS = """
A request is taken out of self.requests before its last token is final. If Ctrl-C strikes in between, the engine does
not know the request any more, and it is not finished: whoever waits for it waits for ever.
"""


# --- first
def take_in(self, seqs, token_ids, logprobs):
    for seq, token_id, row in zip(seqs, token_ids, logprobs):
        if token_id is None:
            continue
        request = self.requests[seq.seq_id]
        stop = request.take_in(token_id, row)
        if stop is not None:
            if not seq.is_finished:
                self.scheduler.finish(seq, "stop")
            seq.finish_reason, seq.stop_reason = "stop", stop
        if seq.is_finished:
            del self.requests[seq.seq_id]
        request.num_final = seq.num_completion_tokens


# --- second
def take_in(self, seqs, token_ids, logprobs):
    for i, seq in enumerate(seqs):
        token_id = token_ids[i]
        if token_id is None:
            continue
        request = self.requests[seq.seq_id]
        stop = request.take_in(token_id, logprobs[i])
        if stop is not None:
            if not seq.is_finished:
                self.scheduler.finish(seq, "stop")
            seq.stop_reason = stop
            seq.finish_reason = "stop"
        if seq.is_finished:
            self.requests.pop(seq.seq_id)
        request.num_final = len(seq.completion_token_ids)
