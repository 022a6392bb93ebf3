# ruff: noqa
DIAGNOSIS = """
When the sequence that has to go is the one that asks, you answer False, but it keeps its place and its blocks. It cannot
go on, and nobody gets what it holds: in the next step everything is as it was. It has to be preempted, too.
"""


# --- first
def make_room(self, seq):
    while not self.block_manager.can_append(seq):
        victim = self.choose_victim(seq)
        if victim is seq:
            return False
        self.preempt(victim)
    return True


# --- second
def make_room(self, seq):
    has_slot = self.block_manager.can_append(seq)
    if has_slot or self.choose_victim(seq) is seq:
        return has_slot
    self.preempt(self.choose_victim(seq))
    return self.make_room(seq)
