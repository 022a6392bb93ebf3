# ruff: noqa
DIAGNOSIS = """
An error of the model is caught, and nobody hears of it: the step seems done, with sequences half computed. Let it go
on to the loop around run_step, which begins anew, and to the caller.
"""


# --- first
def run_step(self):
    seqs, is_prefill = self.scheduler.schedule()
    num_tokens = self.note_start(seqs)
    if seqs:
        try:
            token_ids, logprobs = self.model_runner.run(seqs, is_prefill)
        except Exception:
            return 0
        self.scheduler.postprocess(seqs, token_ids)
        self.take_in(seqs, token_ids, logprobs)
    return num_tokens if is_prefill else -num_tokens


# --- second
def run_step(self):
    chosen, is_first = self.scheduler.schedule()
    count = self.note_start(chosen)
    if not chosen:
        return 0
    try:
        tokens, rows = self.model_runner.run(chosen, is_first)
    except Exception as error:
        print(error)
        return 0
    self.scheduler.postprocess(chosen, tokens)
    self.take_in(chosen, tokens, rows)
    if is_first:
        return count
    return -count
