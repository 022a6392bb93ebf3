# ruff: noqa
DIAGNOSIS = """
You count every block found in the cache as free of charge. That holds only while somebody is using it. A cached block
that nobody uses is one of the free ones, and reviving it takes it away from them.
"""


# --- first
def can_allocate(self, seq):
    return seq.num_blocks - len(self.find_cached_blocks(seq)) <= len(self.free_block_ids)


# --- second
def can_allocate(self, seq):
    needed = seq.num_blocks
    for _ in self.find_cached_blocks(seq):
        needed -= 1
    return not needed > len(self.free_block_ids)
