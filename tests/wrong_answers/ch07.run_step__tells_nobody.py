# ruff: noqa
DIAGNOSIS = """
The scheduler knows of the tokens, the requests do not: nobody who waits for an answer hears of it. take_in tells
them.
"""


# --- first
def run_step(self):
    seqs, is_prefill = self.scheduler.schedule()
    num_tokens = self.note_start(seqs)
    if seqs:
        token_ids, logprobs = self.model_runner.run(seqs, is_prefill)
        self.scheduler.postprocess(seqs, token_ids)
    return num_tokens if is_prefill else -num_tokens


# --- second
def run_step(self):
    chosen, is_first = self.scheduler.schedule()
    count = self.note_start(chosen)
    if not chosen:
        return 0
    tokens, _ = self.model_runner.run(chosen, is_first)
    self.scheduler.postprocess(chosen, tokens)
    if is_first:
        return count
    return -count
