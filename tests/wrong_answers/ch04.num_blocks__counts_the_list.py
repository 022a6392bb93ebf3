# ruff: noqa
DIAGNOSIS = """
You count the entries of token_ids. In the engine's own process that works. In a worker process the list may be empty, because
most steps do not need it, and then you would say 0. Another attribute always knows how many tokens there are.
"""


# --- first
@property
def num_blocks(self):
    return (len(self.token_ids) + self.block_size - 1) // self.block_size


# --- second
@property
def num_blocks(self):
    return -(-len(self.token_ids) // self.block_size)
