# ruff: noqa
DIAGNOSIS = """
You count full blocks only. The tokens left over at the end need a block, too, even if they do not fill it.
"""


# --- first
def can_allocate(self, seq):
    shared = sum(self.blocks[block_id].ref_count > 0 for block_id in self.find_cached_blocks(seq))
    return seq.num_tokens // self.block_size - shared <= len(self.free_block_ids)


# --- second
def can_allocate(self, seq):
    needed = len(seq.token_ids) // self.block_size
    for block_id in self.find_cached_blocks(seq):
        if self.blocks[block_id].ref_count:
            needed -= 1
    return len(self.free_block_ids) >= needed
