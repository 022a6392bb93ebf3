# ruff: noqa
DIAGNOSIS = """
The blocks are shared, but seq.num_cached_tokens stays 0, so the engine computes those tokens again, into blocks that
others are reading. Say how many tokens the shared blocks hold.
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
    while len(seq.block_table) < seq.num_blocks:
        self._append_new_block(seq)


# --- second
def allocate(self, seq):
    if len(seq.block_table) > 0 or not self.can_allocate(seq):
        raise RuntimeError("cannot allocate")
    for block_id in self.find_cached_blocks(seq):
        self._share(block_id)
        seq.block_table.append(block_id)
    for _ in range(seq.num_blocks - len(seq.block_table)):
        self._append_new_block(seq)
