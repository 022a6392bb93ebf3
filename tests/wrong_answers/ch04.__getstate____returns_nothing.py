# ruff: noqa
DIAGNOSIS = """
Nothing is returned, so pickle believes that there is nothing to send, and the worker gets a sequence without any attribute.
pickle takes what you return.
"""


# --- first
def __getstate__(self):
    state = self.__dict__.copy()
    state["block_hashes"] = []
    if self.num_cached_tokens == self.num_tokens - 1:
        state["token_ids"] = []


# --- second
def __getstate__(self):
    state = {**vars(self), "block_hashes": []}
    if self.num_cached_tokens == self.num_tokens - 1:
        state.update(token_ids=[])
    return None
