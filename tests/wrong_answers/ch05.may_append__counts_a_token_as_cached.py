# ruff: noqa
DIAGNOSIS = """
With the new block you count a token as cached. Nothing is in that block yet: its keys and values come in the step that
computes the token, and postprocess counts it then.
"""


# --- first
def may_append(self, seq):
    if len(seq.block_table) < seq.num_blocks:
        self._append_new_block(seq)
        seq.num_cached_tokens += 1


# --- second
def may_append(self, seq):
    if seq.num_blocks == len(seq.block_table):
        return
    seq.num_cached_tokens = seq.num_cached_tokens + 1
    self._append_new_block(seq)
