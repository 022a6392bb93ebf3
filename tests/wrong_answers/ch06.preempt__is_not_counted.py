# ruff: noqa
DIAGNOSIS = """
All is in its place, but num_preemptions does not know of it. Whoever runs a server watches that number: when it grows,
the pool is too small.
"""


# --- first
def preempt(self, seq):
    self.running.remove(seq)
    self.block_manager.deallocate(seq)
    seq.status = SequenceStatus.WAITING
    seq.num_scheduled_tokens = 0
    self.waiting.appendleft(seq)


# --- second
def preempt(self, seq):
    seq.num_scheduled_tokens = 0
    self.waiting.insert(0, seq)
    del self.running[self.running.index(seq)]
    seq.status = SequenceStatus["WAITING"]
    self.block_manager.deallocate(seq)
