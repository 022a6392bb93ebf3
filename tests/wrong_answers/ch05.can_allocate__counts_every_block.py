# ruff: noqa
DIAGNOSIS = """
You ask for all blocks of the sequence, even those that it can share with somebody who is running. So sequences with
a common prefix wait although there is room for them. Count the shared ones off (num_free_blocks_needed does).
"""


# --- first
def can_allocate(self, seq):
    return seq.num_blocks <= len(self.free_block_ids)


# --- second
def can_allocate(self, seq):
    missing = seq.num_blocks - len(seq.block_table)
    free = sum(block.ref_count == 0 for block in self.blocks)
    return free >= missing
