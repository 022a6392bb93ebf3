# ruff: noqa
DIAGNOSIS = """
The sequence has no blocks any more, so nothing of it counts as computed. Set seq.num_cached_tokens to 0, or it will
not be computed again when it comes back.
"""


# --- first
def deallocate(self, seq):
    for block_id in reversed(seq.block_table):
        block = self.blocks[block_id]
        block.ref_count -= 1
        if block.ref_count == 0:
            self.used_block_ids.remove(block_id)
            self.free_block_ids[block_id] = None
    seq.block_table = []


# --- second
def deallocate(self, seq):
    while seq.block_table:
        block = self.blocks[seq.block_table.pop()]
        block.ref_count -= 1
        if not block.ref_count:
            self.used_block_ids.discard(block.block_id)
            self.free_block_ids.update({block.block_id: None})
