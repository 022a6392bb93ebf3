# ruff: noqa
DIAGNOSIS = """
You take it for decode as soon as the sequence has generated something. But after a preemption its blocks are gone, and all
its tokens are computed again, answer included: the worker needs them. What tells how many are left to compute?
"""


# --- first
def __getstate__(self):
    state = self.__dict__.copy()
    state["block_hashes"] = []
    if self.num_completion_tokens > 0:
        state["token_ids"] = []
    return state


# --- second
def __getstate__(self):
    state = {**vars(self), "block_hashes": []}
    if self.num_tokens > self.num_prompt_tokens:
        state["token_ids"] = []
    return state
