# ruff: noqa
DIAGNOSIS = """
The tokens stay at home in every step. For decode that is fine, but a prefill computes many tokens, and the worker has none
of them. Send them as long as more than the last token is left to compute.
"""


# --- first
def __getstate__(self):
    state = self.__dict__.copy()
    state["block_hashes"] = []
    state["token_ids"] = []
    return state


# --- second
def __getstate__(self):
    return {**vars(self), "token_ids": [], "block_hashes": []}
