# ruff: noqa
DIAGNOSIS = """
The preempted sequence stands behind everybody who came after it. With a long queue it waits for minutes in the middle
of its answer. It was there first: it comes back to the head.
"""


# --- first
def preempt(self, seq):
    self.running.remove(seq)
    self.block_manager.deallocate(seq)
    seq.status = SequenceStatus.WAITING
    seq.num_scheduled_tokens = 0
    self.waiting.append(seq)
    self.num_preemptions += 1


# --- second
def preempt(self, seq):
    seq.num_scheduled_tokens = 0
    self.num_preemptions = self.num_preemptions + 1
    self.waiting.insert(len(self.waiting), seq)
    del self.running[self.running.index(seq)]
    seq.status = SequenceStatus["WAITING"]
    self.block_manager.deallocate(seq)
