# ruff: noqa
DIAGNOSIS = """
You share the cached blocks, and then ask whether there are enough. When the answer is no, they keep an owner that does not
have them, and never become free again. Ask can_allocate before anything is changed.
"""


# --- first
def allocate(self, seq):
    if seq.block_table:
        raise RuntimeError("has blocks already")
    cached = self.find_cached_blocks(seq)
    for block_id in cached:
        self._share(block_id)
    if seq.num_blocks - len(cached) > len(self.free_block_ids):
        raise RuntimeError("not enough free blocks")
    seq.block_table = cached
    seq.num_cached_tokens = len(cached) * self.block_size
    while len(seq.block_table) < seq.num_blocks:
        self._append_new_block(seq)


# --- second
def allocate(self, seq):
    if len(seq.block_table) > 0:
        raise RuntimeError("allocate was called twice")
    shared = []
    for block_id in self.find_cached_blocks(seq):
        self._share(block_id)
        shared.append(block_id)
    missing = seq.num_blocks - len(shared)
    if missing > len(self.free_block_ids):
        raise RuntimeError("the pool is too full")
    seq.block_table.extend(shared)
    seq.num_cached_tokens = self.block_size * len(shared)
    for _ in range(missing):
        self._append_new_block(seq)
