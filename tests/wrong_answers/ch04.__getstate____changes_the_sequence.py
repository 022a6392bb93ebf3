# ruff: noqa
DIAGNOSIS = """
You change the attributes of the sequence itself: self.__dict__ is not a copy, it is where they live. After it has been sent
once, the engine's own sequence has lost its tokens. Change a copy.
"""


# --- first
def __getstate__(self):
    state = self.__dict__
    state["block_hashes"] = []
    if self.num_cached_tokens == self.num_tokens - 1:
        state["token_ids"] = []
    return state


# --- second
def __getstate__(self):
    self.block_hashes = []
    if self.num_tokens - self.num_cached_tokens == 1:
        self.token_ids = []
    return dict(vars(self))
