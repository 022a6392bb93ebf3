# ruff: noqa
# Right, and nothing like ours: whoever would want room for longest goes, the newest of equal ones.
def choose_victim(self, seq):
    chosen, most = seq, -1
    for other in reversed(self.running):
        left = other.sampling_params.max_tokens - (other.num_tokens - other.num_prompt_tokens)
        if left > most:
            chosen, most = other, left
    return chosen
