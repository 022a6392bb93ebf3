# ruff: noqa
DIAGNOSIS = """
Nobody notes when a request is scheduled for the first time, so its queue time is unknown. note_start(seqs) does that,
besides counting, and has to be called before the model runs.
"""


# --- first
def run_step(self):
    seqs, is_prefill = self.scheduler.schedule()
    num_tokens = sum(seq.num_scheduled_tokens for seq in seqs)
    if seqs:
        token_ids, logprobs = self.model_runner.run(seqs, is_prefill)
        self.scheduler.postprocess(seqs, token_ids)
        self.take_in(seqs, token_ids, logprobs)
    return num_tokens if is_prefill else -num_tokens


# --- second
def run_step(self):
    chosen, is_first = self.scheduler.schedule()
    count = 0
    for seq in chosen:
        count += seq.num_scheduled_tokens
    if not chosen:
        return 0
    tokens, rows = self.model_runner.run(chosen, is_first)
    self.scheduler.postprocess(chosen, tokens)
    self.take_in(chosen, tokens, rows)
    if is_first:
        return count
    return -count
