# ruff: noqa
DIAGNOSIS = """
When the sequence that has to go is the one that asks, you ask again, and again: nothing will ever change, for nobody
else is going to give up a block. The sequence that asks is a candidate, too.
"""


# --- first
def make_room(self, seq):
    while not self.block_manager.can_append(seq):
        victim = self.choose_victim(seq)
        if victim is not seq:
            self.preempt(victim)
    return True


# --- second
def make_room(self, seq):
    while True:
        if self.block_manager.can_append(seq):
            return True
        for other in [self.choose_victim(seq)]:
            if other.seq_id != seq.seq_id:
                self.preempt(other)
