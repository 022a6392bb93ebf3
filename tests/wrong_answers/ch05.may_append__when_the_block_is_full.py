# ruff: noqa
DIAGNOSIS = """
You add a block when the last one has just become full. The new block is not needed then, but only for the next token,
which may never come. Compare the blocks that the tokens need with those that are there.
"""


# --- first
def may_append(self, seq):
    if seq.num_tokens % self.block_size == 0:
        self._append_new_block(seq)


# --- second
def may_append(self, seq):
    if seq.last_block_num_tokens == seq.block_size:
        self._append_new_block(seq)
