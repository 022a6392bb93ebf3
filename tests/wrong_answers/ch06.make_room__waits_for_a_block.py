# ruff: noqa
DIAGNOSIS = """
You look for somebody newer to preempt, and when there is nobody you ask again, and again: nothing will ever change,
for nobody else is going to give up a block. The sequence that asks is a candidate, too.
"""


# --- first
def make_room(self, seq):
    while not self.block_manager.can_append(seq):
        newest = self.running[-1]
        if newest is not seq:
            self.preempt(newest)
    return True


# --- second
def make_room(self, seq):
    while True:
        if self.block_manager.can_append(seq):
            return True
        for other in [self.running[-1]]:
            if other.seq_id != seq.seq_id:
                self.preempt(other)
