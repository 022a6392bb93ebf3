# ruff: noqa
DIAGNOSIS = """
The limits are right, but what is raised is an AssertionError. It says that the engine itself has a bug, and it is not even
raised when Python runs with -O. The docstring names the error that belongs to an index that does not exist.
"""


# --- first
def block(self, i):
    assert 0 <= i < self.num_blocks
    return self.token_ids[i * self.block_size : (i + 1) * self.block_size]


# --- second
def block(self, i):
    if not 0 <= i < self.num_blocks:
        raise AssertionError(i)
    start = i * self.block_size
    return self.token_ids[start : start + self.block_size]
