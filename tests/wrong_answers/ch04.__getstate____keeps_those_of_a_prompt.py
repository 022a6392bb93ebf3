# ruff: noqa
DIAGNOSIS = """
You keep the tokens as long as no answer has begun. A prompt, too, may have a single token left without keys and values: one
of one token, or one of which the cache has all others. That token is last_token, and the list is not needed.
"""


# --- first
def __getstate__(self):
    state = self.__dict__.copy()
    state["block_hashes"] = []
    if self.num_completion_tokens > 0 and self.num_cached_tokens == self.num_tokens - 1:
        state["token_ids"] = []
    return state


# --- second
def __getstate__(self):
    is_decode = self.num_tokens > self.num_prompt_tokens and self.num_tokens - self.num_cached_tokens == 1
    return {**vars(self), "block_hashes": [], "token_ids": [] if is_decode else self.token_ids}
