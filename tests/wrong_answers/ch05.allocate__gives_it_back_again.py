# ruff: noqa
DIAGNOSIS = """
You notice that blocks are missing when some are taken already, and give them back. But a block that was handed out has
forgotten what it held, and it comes back to another place in the order: the cache is smaller after a refusal. Ask first.
"""


# --- first
def allocate(self, seq):
    if seq.block_table:
        raise RuntimeError("it has blocks already")
    cached = self.find_cached_blocks(seq)
    for block_id in cached:
        self._share(block_id)
    seq.block_table = cached
    seq.num_cached_tokens = len(cached) * self.block_size
    try:
        while len(seq.block_table) < seq.num_blocks:
            self._append_new_block(seq)
    except RuntimeError:
        self.deallocate(seq)
        raise


# --- second
def allocate(self, seq):
    if len(seq.block_table) > 0:
        raise RuntimeError
    for block_id in self.find_cached_blocks(seq):
        self._share(block_id)
        seq.block_table.append(block_id)
    seq.num_cached_tokens = len(seq.block_table) * self.block_size
    for _ in range(seq.num_blocks - len(seq.block_table)):
        if not self.free_block_ids:
            self.deallocate(seq)
            raise RuntimeError("not enough blocks")
        self._append_new_block(seq)
