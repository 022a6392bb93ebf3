# ruff: noqa
DIAGNOSIS = """
You put None where a list belongs. Code in the worker that goes through the list, or takes its length, fails on None and
works with an empty list. Keep the type.
"""


# --- first
def __getstate__(self):
    state = self.__dict__.copy()
    state["block_hashes"] = None
    if self.num_cached_tokens == self.num_tokens - 1:
        state["token_ids"] = None
    return state


# --- second
def __getstate__(self):
    is_decode = self.num_tokens - self.num_cached_tokens == 1
    return vars(self) | {"block_hashes": None, "token_ids": None if is_decode else self.token_ids}
