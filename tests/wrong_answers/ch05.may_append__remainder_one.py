# ruff: noqa
DIAGNOSIS = """
You add a block when the number of tokens leaves a remainder of 1. That is right for a block size above 1 and a first call,
but for blocks of one token the remainder is always 0, and a second call adds a second block.
"""


# --- first
def may_append(self, seq):
    if seq.num_tokens % self.block_size == 1:
        self._append_new_block(seq)


# --- second
def may_append(self, seq):
    if (len(seq.token_ids) - 1) % seq.block_size == 0 and self.block_size != 1:
        self._append_new_block(seq)
