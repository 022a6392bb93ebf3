# ruff: noqa
DIAGNOSIS = """
You take it for decode when one token is scheduled. Nearly right: a step may also compute one token out of the middle of a
prompt, if that is all the room there is, and last_token is another one. Look at how many are left, not at how many are scheduled.
"""


# --- first
def __getstate__(self):
    state = self.__dict__.copy()
    state["block_hashes"] = []
    if self.num_scheduled_tokens == 1:
        state["token_ids"] = []
    return state


# --- second
def __getstate__(self):
    state = {**vars(self), "block_hashes": []}
    if len(range(self.num_scheduled_tokens)) == 1:
        state.update(token_ids=[])
    return state
