# ruff: noqa
DIAGNOSIS = """
You add one block in any case. That is right only while something is left over: when the last block is exactly full, you ask
for an empty block, and the engine believes that it has run out of memory too early. Try 8 tokens in blocks of 4.
"""


# --- first
@property
def num_blocks(self):
    return self.num_tokens // self.block_size + 1


# --- second
@property
def num_blocks(self):
    return (self.num_tokens + self.block_size) // self.block_size
