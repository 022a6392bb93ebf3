# ruff: noqa
DIAGNOSIS = """
You leave attributes out. The worker's copy then has no attribute of that name at all, and whoever asks for it gets an
AttributeError. An empty list costs next to nothing, and the copy stays a whole sequence.
"""


# --- first
def __getstate__(self):
    state = self.__dict__.copy()
    del state["block_hashes"]
    if self.num_cached_tokens == self.num_tokens - 1:
        del state["token_ids"]
    return state


# --- second
def __getstate__(self):
    unused = {"block_hashes"} | ({"token_ids"} if self.num_tokens - self.num_cached_tokens == 1 else set())
    return {name: value for name, value in vars(self).items() if name not in unused}
