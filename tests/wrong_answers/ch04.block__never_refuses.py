# ruff: noqa
DIAGNOSIS = """
You cut the tokens out without asking whether there is such a block. A slice never complains: outside of the list it is
empty, and with negative numbers it counts from the end. So a mistake of the caller stays hidden. Which values of i are good?
"""


# --- first
def block(self, i):
    return self.token_ids[i * self.block_size : (i + 1) * self.block_size]


# --- second
def block(self, i):
    start = i * self.block_size
    return self.token_ids[start : start + self.block_size]
