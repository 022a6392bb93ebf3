# ruff: noqa
DIAGNOSIS = """
You count the sequences of the step. The number is that of tokens: in a prefill a sequence computes many.
note_start(seqs) returns it.
"""


# --- first
def run_step(self):
    seqs, is_prefill = self.scheduler.schedule()
    self.note_start(seqs)
    if seqs:
        token_ids, logprobs = self.model_runner.run(seqs, is_prefill)
        self.scheduler.postprocess(seqs, token_ids)
        self.take_in(seqs, token_ids, logprobs)
    return len(seqs) if is_prefill else -len(seqs)


# --- second
def run_step(self):
    chosen, is_first = self.scheduler.schedule()
    count = self.note_start(chosen)
    if not chosen:
        return 0
    tokens, rows = self.model_runner.run(chosen, is_first)
    self.scheduler.postprocess(chosen, tokens)
    self.take_in(chosen, tokens, rows)
    count = sum(1 for _ in chosen)
    return count if is_first else -count
