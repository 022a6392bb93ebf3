# ruff: noqa
DIAGNOSIS = """
When the newest is the sequence itself you answer False, but it keeps its place and its blocks. It cannot go on, and
nobody gets what it holds: in the next step everything is as it was. It has to be preempted, too.
"""


# --- first
def make_room(self, seq):
    while not self.block_manager.can_append(seq):
        newest = self.running[-1]
        if newest is seq:
            return False
        self.preempt(newest)
    return True


# --- second
def make_room(self, seq):
    has_slot = self.block_manager.can_append(seq)
    if has_slot or self.running[-1] is seq:
        return has_slot
    self.preempt(self.running[-1])
    return self.make_room(seq)
