# ruff: noqa
DIAGNOSIS = """
You wipe the block when it is freed. But a freed block that still says what it holds is the prefix cache. Leave its hash
alone; whoever takes the block later wipes it.
"""


# --- first
def deallocate(self, seq):
    for block_id in reversed(seq.block_table):
        block = self.blocks[block_id]
        block.ref_count -= 1
        if block.ref_count == 0:
            self.hash_to_block_id.pop(block.hash, None)
            block.forget()
            self.used_block_ids.remove(block_id)
            self.free_block_ids[block_id] = None
    seq.block_table = []
    seq.num_cached_tokens = 0


# --- second
def deallocate(self, seq):
    while seq.block_table:
        block = self.blocks[seq.block_table.pop()]
        block.ref_count -= 1
        if block.ref_count > 0:
            continue
        if self.hash_to_block_id.get(block.hash) == block.block_id:
            del self.hash_to_block_id[block.hash]
        block.hash, block.token_ids = NO_HASH, []
        self.used_block_ids.discard(block.block_id)
        self.free_block_ids.update({block.block_id: None})
    seq.num_cached_tokens = 0
