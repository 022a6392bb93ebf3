# ruff: noqa
DIAGNOSIS = """
_append_new_block has put the block into the table itself, and returns nothing. You append that nothing, too: the table
is full of None before there are enough blocks. Look at what the helper does with seq.block_table.
"""


# --- first
def allocate(self, seq):
    if seq.block_table or not self.can_allocate(seq):
        raise RuntimeError("no blocks for this sequence")
    cached = self.find_cached_blocks(seq)
    for block_id in cached:
        self._share(block_id)
        seq.block_table.append(block_id)
    seq.num_cached_tokens = len(cached) * self.block_size
    while len(seq.block_table) < seq.num_blocks:
        seq.block_table.append(self._append_new_block(seq))


# --- second
def allocate(self, seq):
    if len(seq.block_table) > 0:
        raise RuntimeError("allocate was called twice")
    if not self.can_allocate(seq):
        raise RuntimeError("the pool is too small")
    seq.block_table = self.find_cached_blocks(seq)
    for block_id in seq.block_table:
        self._share(block_id)
    seq.num_cached_tokens = len(seq.block_table) * self.block_size
    while seq.num_blocks > len(seq.block_table):
        new = self._append_new_block(seq)
        seq.block_table += [new]
