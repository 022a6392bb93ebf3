# ruff: noqa
DIAGNOSIS = """
The number is right, but it is a float: float() makes one of what // had kept whole. A list is not multiplied or indexed by
a float, and nobody needs one here. Leave it out.
"""


# --- first
@property
def num_blocks(self):
    return float(self.num_tokens // self.block_size + (self.num_tokens % self.block_size > 0))


# --- second
@property
def num_blocks(self):
    count = (self.num_tokens + self.block_size - 1) // self.block_size
    return count * 1.0
