# ruff: noqa
DIAGNOSIS = """
When the scheduler chooses nobody, the model runner is asked to compute a step of no sequence. A model cannot do that;
leave it alone, and return 0.
"""


# --- first
def run_step(self):
    seqs, is_prefill = self.scheduler.schedule()
    num_tokens = self.note_start(seqs)
    token_ids, logprobs = self.model_runner.run(seqs, is_prefill)
    self.scheduler.postprocess(seqs, token_ids)
    self.take_in(seqs, token_ids, logprobs)
    return num_tokens if is_prefill else -num_tokens


# --- second
def run_step(self):
    chosen, is_first = self.scheduler.schedule()
    count = self.note_start(chosen)
    tokens, rows = self.model_runner.run(chosen, is_first)
    self.scheduler.postprocess(chosen, tokens)
    self.take_in(chosen, tokens, rows)
    if is_first:
        return count
    return -count
