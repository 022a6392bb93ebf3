# ruff: noqa
DIAGNOSIS = """
You take new blocks before you share the cached ones. A new block comes from the free ones, and so may a cached block:
what you were about to share can be overwritten just before. Share first.
"""


# --- first
def allocate(self, seq):
    if seq.block_table:
        raise RuntimeError("has blocks already")
    if not self.can_allocate(seq):
        raise RuntimeError("not enough blocks")
    cached = self.find_cached_blocks(seq)
    for _ in range(seq.num_blocks - len(cached)):
        self._append_new_block(seq)
    for block_id in cached:
        self._share(block_id)
    seq.block_table = cached + seq.block_table
    seq.num_cached_tokens = len(cached) * self.block_size


# --- second
def allocate(self, seq):
    if len(seq.block_table) > 0 or not self.can_allocate(seq):
        raise RuntimeError("cannot allocate")
    cached = self.find_cached_blocks(seq)
    while len(seq.block_table) + len(cached) < seq.num_blocks:
        self._append_new_block(seq)
    for position, block_id in enumerate(cached):
        seq.block_table.insert(position, block_id)
        self._share(block_id)
        seq.num_cached_tokens += self.block_size
