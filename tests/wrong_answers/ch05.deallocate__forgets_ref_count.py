# ruff: noqa
DIAGNOSIS = """
You free a block even while another sequence still shares it; the next sequence overwrites what that one is reading.
Subtract one from ref_count, and free the block only when it has reached 0.
"""


# --- first
def deallocate(self, seq):
    for block_id in reversed(seq.block_table):
        self.blocks[block_id].ref_count = 0
        self.used_block_ids.discard(block_id)
        self.free_block_ids[block_id] = None
    seq.block_table = []
    seq.num_cached_tokens = 0


# --- second
def deallocate(self, seq):
    while seq.block_table:
        block = self.blocks[seq.block_table.pop()]
        block.ref_count = 0
        self.used_block_ids -= {block.block_id}
        self.free_block_ids.update({block.block_id: None})
    seq.num_cached_tokens = 0
