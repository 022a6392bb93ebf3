# ruff: noqa
DIAGNOSIS = """
You add a block for every token. A block holds several: one more is needed only when the last token is the first of a
new block.
"""


# --- first
def may_append(self, seq):
    self._append_new_block(seq)


# --- second
def may_append(self, seq):
    if self.can_append(seq) or seq.num_blocks:
        self._append_new_block(seq)
