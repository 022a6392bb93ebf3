# ruff: noqa
DIAGNOSIS = """
You count num_scheduled_tokens after postprocess, which has set it to 0 for every sequence: what was scheduled is done
then. Count before, as note_start does.
"""


# --- first
def run_step(self):
    seqs, is_prefill = self.scheduler.schedule()
    self.note_start(seqs)
    if seqs:
        token_ids, logprobs = self.model_runner.run(seqs, is_prefill)
        self.scheduler.postprocess(seqs, token_ids)
        self.take_in(seqs, token_ids, logprobs)
    num_tokens = sum(seq.num_scheduled_tokens for seq in seqs)
    return num_tokens if is_prefill else -num_tokens


# --- second
def run_step(self):
    chosen, is_first = self.scheduler.schedule()
    self.note_start(chosen)
    if not chosen:
        return 0
    tokens, rows = self.model_runner.run(chosen, is_first)
    self.scheduler.postprocess(chosen, tokens)
    self.take_in(chosen, tokens, rows)
    count = 0
    for seq in chosen:
        count += seq.num_scheduled_tokens
    return count if is_first else -count
