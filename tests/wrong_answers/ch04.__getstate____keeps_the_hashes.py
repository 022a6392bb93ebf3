# ruff: noqa
DIAGNOSIS = """
The tokens are dealt with, but block_hashes still travels. It has an entry for each full block, so it grows with the text, too, and
no worker looks at it.
"""


# --- first
def __getstate__(self):
    state = self.__dict__.copy()
    if self.num_cached_tokens == self.num_tokens - 1:
        state["token_ids"] = []
    return state


# --- second
def __getstate__(self):
    is_decode = self.num_tokens - self.num_cached_tokens == 1
    return {**vars(self), "token_ids": []} if is_decode else dict(vars(self))
