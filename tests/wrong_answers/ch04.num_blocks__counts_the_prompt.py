# ruff: noqa
DIAGNOSIS = """
You count the tokens of the prompt only. The answer needs a place as well: with your count the sequence never gets another
block, however long it grows.
"""


# --- first
@property
def num_blocks(self):
    return (self.num_prompt_tokens + self.block_size - 1) // self.block_size


# --- second
@property
def num_blocks(self):
    full, rest = divmod(self.num_prompt_tokens, self.block_size)
    return full + (rest > 0)
