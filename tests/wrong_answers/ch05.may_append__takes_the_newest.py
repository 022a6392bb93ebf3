# ruff: noqa
DIAGNOSIS = """
You take the block that was freed last. Its content is the youngest in the cache, and the most likely to be asked for
again; the oldest stays instead. Blocks are taken from the left end. _append_new_block knows how.
"""


# --- first
def may_append(self, seq):
    if len(seq.block_table) < seq.num_blocks:
        if not self.free_block_ids:
            raise RuntimeError("no free block")
        block_id, _ = self.free_block_ids.popitem()
        block = self.blocks[block_id]
        if self.hash_to_block_id.get(block.hash) == block_id:
            del self.hash_to_block_id[block.hash]
        block.forget()
        block.ref_count = 1
        self.used_block_ids.add(block_id)
        seq.block_table.append(block_id)


# --- second
def may_append(self, seq):
    if len(seq.block_table) < seq.num_blocks:
        if self.free_block_ids:
            self.free_block_ids.move_to_end(list(self.free_block_ids)[-1], last=False)
        self._append_new_block(seq)
