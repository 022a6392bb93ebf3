# ruff: noqa
DIAGNOSIS = """
The count is right, and a decode looks like a prefill: whoever counts the tokens of prompts and of answers by that
sign takes one for the other. A decode step returns a negative number.
"""


# --- first
def run_step(self):
    seqs, is_prefill = self.scheduler.schedule()
    num_tokens = self.note_start(seqs)
    if seqs:
        token_ids, logprobs = self.model_runner.run(seqs, is_prefill)
        self.scheduler.postprocess(seqs, token_ids)
        self.take_in(seqs, token_ids, logprobs)
    return num_tokens


# --- second
def run_step(self):
    chosen, is_first = self.scheduler.schedule()
    count = self.note_start(chosen)
    if not chosen:
        return 0
    tokens, rows = self.model_runner.run(chosen, is_first)
    self.scheduler.postprocess(chosen, tokens)
    self.take_in(chosen, tokens, rows)
    return count
