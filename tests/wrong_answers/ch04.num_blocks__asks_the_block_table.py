# ruff: noqa
DIAGNOSIS = """
You count the blocks that the sequence has, in its block table. What is wanted is how many its tokens need. The two differ just
when it matters: before it is admitted, and when its last block is full. The engine compares them to know what is missing.
"""


# --- first
@property
def num_blocks(self):
    return len(self.block_table)


# --- second
@property
def num_blocks(self):
    return sum(1 for block_id in self.block_table)
