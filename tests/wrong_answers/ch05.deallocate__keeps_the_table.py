# ruff: noqa
DIAGNOSIS = """
The blocks go back, but the sequence still points at them. When it is admitted again it looks as if it had its blocks.
Empty seq.block_table.
"""


# --- first
def deallocate(self, seq):
    for block_id in reversed(seq.block_table):
        block = self.blocks[block_id]
        block.ref_count -= 1
        if block.ref_count == 0:
            self.used_block_ids.remove(block_id)
            self.free_block_ids[block_id] = None
    seq.num_cached_tokens = 0


# --- second
def deallocate(self, seq):
    for block in [self.blocks[block_id] for block_id in seq.block_table[::-1]]:
        block.ref_count -= 1
        if not block.ref_count:
            self.used_block_ids.discard(block.block_id)
            self.free_block_ids.update({block.block_id: None})
    seq.num_cached_tokens = 0
