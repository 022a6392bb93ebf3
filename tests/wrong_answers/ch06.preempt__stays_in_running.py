# ruff: noqa
DIAGNOSIS = """
The sequence is in both queues now. It would run in two places at once. A live request is in exactly one.
"""


# --- first
def preempt(self, seq):
    self.block_manager.deallocate(seq)
    seq.status = SequenceStatus.WAITING
    seq.num_scheduled_tokens = 0
    self.waiting.appendleft(seq)
    self.num_preemptions += 1


# --- second
def preempt(self, seq):
    seq.num_scheduled_tokens = 0
    self.num_preemptions = self.num_preemptions + 1
    self.waiting.insert(0, seq)
    seq.status = SequenceStatus["WAITING"]
    self.block_manager.deallocate(seq)
