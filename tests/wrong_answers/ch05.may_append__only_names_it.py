# ruff: noqa
DIAGNOSIS = """
You write a free block into the table, and the block manager does not know of it: the block is still free, nobody is counted
as its owner, and the next one who asks gets it, too. _append_new_block does all of it.
"""


# --- first
def may_append(self, seq):
    if len(seq.block_table) < seq.num_blocks:
        if not self.free_block_ids:
            raise RuntimeError("no free block")
        seq.block_table.append(next(iter(self.free_block_ids)))


# --- second
def may_append(self, seq):
    if seq.num_blocks - len(seq.block_table) > 0:
        free = list(self.free_block_ids)
        if len(free) == 0:
            raise RuntimeError("all blocks are in use")
        seq.block_table += free[:1]
