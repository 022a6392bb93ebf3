# ruff: noqa
DIAGNOSIS = """
You preempt one sequence and take it that there is a slot. But its blocks may be shared with others, and then its going
frees none. Ask again, until there really is one.
"""


# --- first
def make_room(self, seq):
    if not self.block_manager.can_append(seq):
        victim = self.choose_victim(seq)
        self.preempt(victim)
        if victim is seq:
            return False
    return True


# --- second
def make_room(self, seq):
    if self.block_manager.can_append(seq):
        return True
    victim = self.choose_victim(seq)
    self.preempt(victim)
    return victim is not seq
