# ruff: noqa
DIAGNOSIS = """
You put cached blocks into the table without counting the sequence as an owner. Their reference count is now too low, so
they are given away while somebody still reads them. Call _share for each.
"""


# --- first
def allocate(self, seq):
    if seq.block_table:
        raise RuntimeError("has blocks already")
    if not self.can_allocate(seq):
        raise RuntimeError("not enough blocks")
    seq.block_table = self.find_cached_blocks(seq)
    seq.num_cached_tokens = len(seq.block_table) * self.block_size
    while len(seq.block_table) < seq.num_blocks:
        self._append_new_block(seq)


# --- second
def allocate(self, seq):
    if len(seq.block_table) > 0 or not self.can_allocate(seq):
        raise RuntimeError("cannot allocate")
    for block_id in self.find_cached_blocks(seq):
        seq.block_table.append(block_id)
        seq.num_cached_tokens += self.block_size
    for _ in range(len(seq.block_table), seq.num_blocks):
        self._append_new_block(seq)
