# ruff: noqa
DIAGNOSIS = """
You make the block free but leave it in used_block_ids: it is on both sides now. A block belongs to exactly one of the
two.
"""


# --- first
def deallocate(self, seq):
    for block_id in reversed(seq.block_table):
        block = self.blocks[block_id]
        block.ref_count -= 1
        if block.ref_count == 0:
            self.free_block_ids[block_id] = None
    seq.block_table = []
    seq.num_cached_tokens = 0


# --- second
def deallocate(self, seq):
    while seq.block_table:
        block = self.blocks[seq.block_table.pop()]
        block.ref_count -= 1
        if not block.ref_count:
            self.free_block_ids.update({block.block_id: None})
    seq.num_cached_tokens = 0
