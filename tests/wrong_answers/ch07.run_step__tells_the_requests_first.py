# ruff: noqa
DIAGNOSIS = """
The requests are told before the scheduler has heard of the tokens. It is the scheduler that appends them and decides
whether an answer is over: a request then sees its sequence as it was a step ago.
"""


# --- first
def run_step(self):
    seqs, is_prefill = self.scheduler.schedule()
    num_tokens = self.note_start(seqs)
    if seqs:
        token_ids, logprobs = self.model_runner.run(seqs, is_prefill)
        self.take_in(seqs, token_ids, logprobs)
        self.scheduler.postprocess(seqs, token_ids)
    return num_tokens if is_prefill else -num_tokens


# --- second
def run_step(self):
    chosen, is_first = self.scheduler.schedule()
    count = self.note_start(chosen)
    if not chosen:
        return 0
    tokens, rows = self.model_runner.run(chosen, is_first)
    self.take_in(chosen, tokens, rows)
    self.scheduler.postprocess(chosen, tokens)
    if is_first:
        return count
    return -count
