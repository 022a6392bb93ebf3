# ruff: noqa
DIAGNOSIS = """
You give the blocks back from the front, so the first block of the prefix is the first to be handed out again. Without
it the others cannot be found any more, though they are still there. Go through the table backwards.
"""


# --- first
def deallocate(self, seq):
    for block_id in seq.block_table:
        block = self.blocks[block_id]
        block.ref_count -= 1
        if block.ref_count == 0:
            self.used_block_ids.remove(block_id)
            self.free_block_ids[block_id] = None
    seq.block_table = []
    seq.num_cached_tokens = 0


# --- second
def deallocate(self, seq):
    while seq.block_table:
        block = self.blocks[seq.block_table.pop(0)]
        block.ref_count -= 1
        if not block.ref_count:
            self.used_block_ids.discard(block.block_id)
            self.free_block_ids.update({block.block_id: None})
    seq.num_cached_tokens = 0
