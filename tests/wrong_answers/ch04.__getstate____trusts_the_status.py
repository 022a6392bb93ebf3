# ruff: noqa
DIAGNOSIS = """
You take it for decode when the status is RUNNING. The scheduler sets that before the last part of a prefill, so a short prompt
travels without its tokens. The status says in which queue a sequence is, not how many of its tokens are left to compute.
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
