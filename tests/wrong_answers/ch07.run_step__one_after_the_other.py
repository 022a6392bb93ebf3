# ruff: noqa
DIAGNOSIS = """
You run the model once for each sequence. It reads all its weights for each run, so a batch would gain nothing: the
runner computes all sequences of a step at once.
"""


# --- first
def run_step(self):
    seqs, is_prefill = self.scheduler.schedule()
    num_tokens = self.note_start(seqs)
    for seq in seqs:
        token_ids, logprobs = self.model_runner.run([seq], is_prefill)
        self.scheduler.postprocess([seq], token_ids)
        self.take_in([seq], token_ids, logprobs)
    return num_tokens if is_prefill else -num_tokens


# --- second
def run_step(self):
    chosen, is_first = self.scheduler.schedule()
    count = self.note_start(chosen)
    for i in range(len(chosen)):
        part = chosen[i : i + 1]
        tokens, rows = self.model_runner.run(part, is_first)
        self.scheduler.postprocess(part, tokens)
        self.take_in(part, tokens, rows)
    return count if is_first else -count
