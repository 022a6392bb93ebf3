# ruff: noqa
DIAGNOSIS = """
You append what _append_new_block returns, and it returns nothing: it has put the block into the table itself. So each
new block is followed by a None that stands for no block. Look at what the helper does with seq.block_table.
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
    for _ in range(seq.num_blocks - len(cached)):
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
    missing = seq.num_blocks - len(seq.block_table)
    while missing > 0:
        new = self._append_new_block(seq)
        seq.block_table += [new]
        missing -= 1
