# ruff: noqa
DIAGNOSIS = """
You take a last block that has a hash for a full one. Without prefix caching no block ever has one, and then nothing is given
although the block is full. What counts is how many blocks the tokens need, and how many there are.
"""


# --- first
def may_append(self, seq):
    if self.blocks[seq.block_table[-1]].hash != NO_HASH and len(seq.block_table) < seq.num_blocks:
        self._append_new_block(seq)


# --- second
def may_append(self, seq):
    last = self.blocks[seq.block_table[-1]]
    if last.hash == -1 or seq.num_blocks <= len(seq.block_table):
        return
    self._append_new_block(seq)
