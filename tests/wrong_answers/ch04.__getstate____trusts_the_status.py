# ruff: noqa
DIAGNOSIS = """
The last part of a prefill travels without its tokens: you take it for decode. The status is RUNNING then, too, and no
token is left for a later step; but several are computed in this one. Look at how many have no keys and values yet.
"""


# --- first
def __getstate__(self):
    state = self.__dict__.copy()
    state["block_hashes"] = []
    if self.status is SequenceStatus.RUNNING:
        state["token_ids"] = []
    return state


# --- second
def __getstate__(self):
    state = {**vars(self), "block_hashes": []}
    if self.status.name == "RUNNING":
        state["token_ids"] = []
    return state
