# ruff: noqa
DIAGNOSIS = """
You refuse a sequence that needs exactly as many blocks as are free. Using up the last free block is fine: compare with
<=, not with <.
"""


# --- first
def can_allocate(self, seq):
    return self.num_free_blocks_needed(seq) < len(self.free_block_ids)


# --- second
def can_allocate(self, seq):
    left = len(self.free_block_ids) - self.num_free_blocks_needed(seq)
    return left > 0
