# ruff: noqa
DIAGNOSIS = """
The sequence waits, but it still holds its blocks. Nobody gained any room, and room was the reason for all this.
"""


# --- first
def preempt(self, seq):
    self.running.remove(seq)
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
