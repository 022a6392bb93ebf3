# ruff: noqa
DIAGNOSIS = """
You divide with /, so the result is a fraction: a quarter of a block cannot be handed out. A block that is begun counts as a
whole one. Which division gives whole numbers, and which way does it round?
"""


# --- first
@property
def num_blocks(self):
    return self.num_tokens / self.block_size


# --- second
@property
def num_blocks(self):
    return float(self.num_tokens) / float(self.block_size)
