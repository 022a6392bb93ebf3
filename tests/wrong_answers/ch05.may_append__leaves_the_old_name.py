# ruff: noqa
DIAGNOSIS = """
You take a free block by hand and leave its old hash on it. It can still be found as part of an old prompt, although it
is about to be overwritten. _append_new_block takes a block and makes it forget.
"""


# --- first
def may_append(self, seq):
    if len(seq.block_table) < seq.num_blocks:
        if not self.free_block_ids:
            raise RuntimeError("no free block")
        block_id, _ = self.free_block_ids.popitem(last=False)
        self.blocks[block_id].ref_count = 1
        self.used_block_ids.add(block_id)
        seq.block_table.append(block_id)


# --- second
def may_append(self, seq):
    if seq.num_blocks > len(seq.block_table):
        if not len(self.free_block_ids):
            raise RuntimeError("the pool is empty")
        block = self.blocks[next(iter(self.free_block_ids))]
        del self.free_block_ids[block.block_id]
        self.used_block_ids |= {block.block_id}
        block.ref_count += 1
        seq.block_table += [block.block_id]
