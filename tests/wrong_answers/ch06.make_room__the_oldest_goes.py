# ruff: noqa
DIAGNOSIS = """
You take the blocks from the oldest sequence, which has the most tokens to compute again. Under pressure nobody gets
to the end: whoever is about to finish is thrown out. choose_victim says who goes.
"""


# --- first
def make_room(self, seq):
    while not self.block_manager.can_append(seq):
        oldest = self.running[0]
        self.preempt(oldest)
        if oldest is seq:
            return False
    return True


# --- second
def make_room(self, seq):
    if self.block_manager.can_append(seq):
        return True
    victim = next(iter(self.running))
    self.preempt(victim)
    return victim is not seq and self.make_room(seq)
