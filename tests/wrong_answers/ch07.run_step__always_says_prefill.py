# ruff: noqa
DIAGNOSIS = """
The runner is told that every step is a prefill. In a decode step a sequence computes one token, and its place in the
cache is found in another way: pass on what schedule says.
"""


# --- first
def run_step(self):
    seqs, is_prefill = self.scheduler.schedule()
    num_tokens = self.note_start(seqs)
    if seqs:
        token_ids, logprobs = self.model_runner.run(seqs, True)
        self.scheduler.postprocess(seqs, token_ids)
        self.take_in(seqs, token_ids, logprobs)
    return num_tokens if is_prefill else -num_tokens


# --- second
def run_step(self):
    chosen, is_first = self.scheduler.schedule()
    count = self.note_start(chosen)
    if not chosen:
        return 0
    tokens, rows = self.model_runner.run(chosen, is_prefill=True)
    self.scheduler.postprocess(chosen, tokens)
    self.take_in(chosen, tokens, rows)
    if is_first:
        return count
    return -count
