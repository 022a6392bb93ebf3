# ruff: noqa
DIAGNOSIS = """
You keep the first answer and give it again later. The sequence gets longer with every token, and your count does not:
it needs blocks that nobody gives it. Count anew each time.
"""


# --- first
from functools import cached_property


@cached_property
def num_blocks(self):
    return (self.num_tokens + self.block_size - 1) // self.block_size


# --- second
@property
def num_blocks(self):
    if not hasattr(self, "_num_blocks"):
        self._num_blocks = -(-self.num_tokens // self.block_size)
    return self._num_blocks
