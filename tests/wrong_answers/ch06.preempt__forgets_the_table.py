# ruff: noqa
DIAGNOSIS = """
You empty the block table, but the block manager does not know: for it the blocks still have an owner, and nobody will
ever give them back. There is a method that takes the blocks of a sequence back.
"""


# --- first
def preempt(self, seq):
    self.running.remove(seq)
    seq.block_table, seq.num_cached_tokens = [], 0
    seq.status = SequenceStatus.WAITING
    seq.num_scheduled_tokens = 0
    self.waiting.appendleft(seq)
    self.num_preemptions += 1


# --- second
def preempt(self, seq):
    seq.num_scheduled_tokens = 0
    self.num_preemptions = self.num_preemptions + 1
    self.waiting.insert(0, seq)
    del self.running[self.running.index(seq)]
    seq.status = SequenceStatus["WAITING"]
    seq.block_table = list()
    seq.num_cached_tokens = 0
