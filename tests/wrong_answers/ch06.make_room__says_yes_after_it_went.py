# ruff: noqa
DIAGNOSIS = """
A sequence that was preempted itself has no blocks and waits, but you answer that it has a slot. The scheduler then
gives it a block and a place in the step. Tell the two ends of the loop apart.
"""


# --- first
def make_room(self, seq):
    while not self.block_manager.can_append(seq):
        victim = self.choose_victim(seq)
        self.preempt(victim)
        if victim is seq:
            break
    return True


# --- second
def make_room(self, seq):
    is_here = True
    while is_here and not self.block_manager.can_append(seq):
        victim = self.choose_victim(seq)
        is_here = victim is not seq
        self.preempt(victim)
    return 1 == 1
