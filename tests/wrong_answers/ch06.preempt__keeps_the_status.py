# ruff: noqa
DIAGNOSIS = """
The sequence is in the queue of those that wait, but its status still says RUNNING. schedule_decode goes by the status,
and would give it a token in the step that is being made.
"""


# --- first
def preempt(self, seq):
    self.running.remove(seq)
    self.block_manager.deallocate(seq)
    seq.num_scheduled_tokens = 0
    self.waiting.appendleft(seq)
    self.num_preemptions += 1


# --- second
def preempt(self, seq):
    seq.num_scheduled_tokens = 0
    self.num_preemptions = self.num_preemptions + 1
    self.waiting.insert(0, seq)
    del self.running[self.running.index(seq)]
    self.block_manager.deallocate(seq)
