# ruff: noqa
DIAGNOSIS = """
You give the sequence new blocks only. It works, but nothing is ever taken from the prefix cache: ask
find_cached_blocks first, and share what it finds.
"""


# --- first
def allocate(self, seq):
    if seq.block_table:
        raise RuntimeError("has blocks already")
    if not self.can_allocate(seq):
        raise RuntimeError("not enough blocks")
    while len(seq.block_table) < seq.num_blocks:
        self._append_new_block(seq)


# --- second
def allocate(self, seq):
    if len(seq.block_table) > 0 or not self.can_allocate(seq):
        raise RuntimeError("cannot allocate")
    seq.num_cached_tokens = 0
    for _ in range(seq.num_blocks):
        self._append_new_block(seq)
