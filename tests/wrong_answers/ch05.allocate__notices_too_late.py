# ruff: noqa
DIAGNOSIS = """
You do not ask before you begin. When the blocks run out halfway, the sequence keeps those it got so far, and nobody
ever gives them back. Ask can_allocate first and raise RuntimeError before anything is changed.
"""


# --- first
def allocate(self, seq):
    if seq.block_table:
        raise RuntimeError("has blocks already")
    cached = self.find_cached_blocks(seq)
    for block_id in cached:
        self._share(block_id)
    seq.block_table = cached
    seq.num_cached_tokens = len(cached) * self.block_size
    while len(seq.block_table) < seq.num_blocks:
        self._append_new_block(seq)


# --- second
def allocate(self, seq):
    if len(seq.block_table) > 0:
        raise RuntimeError("allocate was called twice")
    for block_id in self.find_cached_blocks(seq):
        self._share(block_id)
        seq.block_table.append(block_id)
        seq.num_cached_tokens += self.block_size
    for _ in range(seq.num_blocks - len(seq.block_table)):
        if not self.free_block_ids:
            raise RuntimeError("the pool is empty")
        self._append_new_block(seq)
