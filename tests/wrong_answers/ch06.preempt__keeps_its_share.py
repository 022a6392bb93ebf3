# ruff: noqa
DIAGNOSIS = """
num_scheduled_tokens still says that the sequence takes part in the step, and it does not. Whoever reads it next counts
tokens that nobody computes.
"""


# --- first
def preempt(self, seq):
    self.running.remove(seq)
    self.block_manager.deallocate(seq)
    seq.status = SequenceStatus.WAITING
    self.waiting.appendleft(seq)
    self.num_preemptions += 1


# --- second
def preempt(self, seq):
    self.num_preemptions = self.num_preemptions + 1
    self.waiting.insert(0, seq)
    del self.running[self.running.index(seq)]
    seq.status = SequenceStatus["WAITING"]
    self.block_manager.deallocate(seq)
