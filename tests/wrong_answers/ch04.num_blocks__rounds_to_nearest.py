# ruff: noqa
DIAGNOSIS = """
You round to the nearest whole number. If the last block is less than half full, it is not counted, and its tokens have no
place. Even a single token needs a block.
"""


# --- first
@property
def num_blocks(self):
    return round(self.num_tokens / self.block_size)


# --- second
@property
def num_blocks(self):
    return int(format(self.num_tokens / self.block_size, ".0f"))
