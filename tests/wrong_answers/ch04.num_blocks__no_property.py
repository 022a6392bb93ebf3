# ruff: noqa
DIAGNOSIS = """
seq.num_blocks is a method in your engine, and everybody who asks for the number gets the method. It has to look like an
attribute: @property stands above def, also in yours.
"""


# --- first
def num_blocks(self):
    return (self.num_tokens + self.block_size - 1) // self.block_size


# --- second
def num_blocks(self):
    full, rest = divmod(self.num_tokens, self.block_size)
    return full + (rest > 0)
