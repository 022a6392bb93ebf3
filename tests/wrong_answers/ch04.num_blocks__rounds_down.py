# ruff: noqa
DIAGNOSIS = """
You round down, so the tokens that are left over after the last full block have no place. A prompt shorter than a block
would get no block at all. Where is the division that rounds?
"""


# --- first
@property
def num_blocks(self):
    return self.num_tokens // self.block_size


# --- second
@property
def num_blocks(self):
    return int(self.num_tokens / self.block_size)
