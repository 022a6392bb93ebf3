# ruff: noqa
DIAGNOSIS = """
You compare with all blocks of the pool. Those that others use are not to be had: only the free ones count, in
free_block_ids.
"""


# --- first
def can_allocate(self, seq):
    return self.num_free_blocks_needed(seq) <= self.num_blocks


# --- second
def can_allocate(self, seq):
    if self.num_free_blocks_needed(seq) > len(self.blocks):
        return False
    return True
