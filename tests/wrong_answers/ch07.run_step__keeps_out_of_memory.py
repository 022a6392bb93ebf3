# ruff: noqa
DIAGNOSIS = """
A lack of GPU memory stays with you: the step computes nothing, and nobody hears why. The loop around run_step knows
what to do: it begins anew with a step half as large. Let torch.OutOfMemoryError go on to it.
"""


# --- first
def run_step(self):
    seqs, is_prefill = self.scheduler.schedule()
    num_tokens = self.note_start(seqs)
    if not seqs:
        return 0
    try:
        token_ids, logprobs = self.model_runner.run(seqs, is_prefill)
    except torch.OutOfMemoryError:
        return 0
    self.scheduler.postprocess(seqs, token_ids)
    self.take_in(seqs, token_ids, logprobs)
    return num_tokens if is_prefill else -num_tokens


# --- second
def run_step(self):
    seqs, is_prefill = self.scheduler.schedule()
    num_tokens = self.note_start(seqs)
    if seqs:
        result = None
        try:
            result = self.model_runner.run(seqs, is_prefill)
        except torch.OutOfMemoryError:
            num_tokens = 0
        if result is not None:
            self.scheduler.postprocess(seqs, result[0])
            self.take_in(seqs, *result)
    return num_tokens if is_prefill else -num_tokens
