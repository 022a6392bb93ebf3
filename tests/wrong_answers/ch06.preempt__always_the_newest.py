# ruff: noqa
DIAGNOSIS = """
You take the last sequence out of running, whichever was asked for. Another one then loses its place and keeps its blocks,
and the one that was meant is in both queues. Take out seq itself.
"""


# --- first
def preempt(self, seq):
    self.running.pop()
    self.block_manager.deallocate(seq)
    seq.status = SequenceStatus.WAITING
    seq.num_scheduled_tokens = 0
    self.waiting.appendleft(seq)
    self.num_preemptions += 1


# --- second
def preempt(self, seq):
    del self.running[-1]
    seq.status, seq.num_scheduled_tokens = SequenceStatus.WAITING, 0
    self.waiting.insert(0, seq)
    self.block_manager.deallocate(seq)
    self.num_preemptions = self.num_preemptions + 1
