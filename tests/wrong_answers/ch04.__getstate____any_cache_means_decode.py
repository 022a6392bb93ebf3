# ruff: noqa
DIAGNOSIS = """
You take it for decode as soon as some tokens are cached. The later parts of a prompt that was cut, and a prompt that begins with a
cached prefix, have cached tokens and still many to compute. Compare how many are cached with how many there are.
"""


# --- first
def __getstate__(self):
    state = self.__dict__.copy()
    state["block_hashes"] = []
    if self.num_cached_tokens > 0:
        state["token_ids"] = []
    return state


# --- second
def __getstate__(self):
    state = {**vars(self), "block_hashes": []}
    if self.num_cached_tokens:
        state.update(token_ids=[])
    return state
