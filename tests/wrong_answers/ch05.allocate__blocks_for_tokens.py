# ruff: noqa
DIAGNOSIS = """
seq.num_cached_tokens counts tokens, and you gave it a number of blocks. Multiply by the block size.
"""


# --- first
def allocate(self, seq):
    if seq.block_table:
        raise RuntimeError("has blocks already")
    if not self.can_allocate(seq):
        raise RuntimeError("not enough blocks")
    cached = self.find_cached_blocks(seq)
    for block_id in cached:
        self._share(block_id)
    seq.block_table = cached
    seq.num_cached_tokens = len(cached)
    while len(seq.block_table) < seq.num_blocks:
        self._append_new_block(seq)


# --- second
def allocate(self, seq):
    if len(seq.block_table) > 0 or not self.can_allocate(seq):
        raise RuntimeError("cannot allocate")
    for block_id in self.find_cached_blocks(seq):
        self._share(block_id)
        seq.block_table.append(block_id)
        seq.num_cached_tokens += 1
    for _ in range(seq.num_blocks - len(seq.block_table)):
        self._append_new_block(seq)
