# ruff: noqa
DIAGNOSIS = """
You take the sequence out of running yourself, and then preempt, which takes it out, too, does not find it. Look at the
newest without removing it.
"""


# --- first
def make_room(self, seq):
    while not self.block_manager.can_append(seq):
        newest = self.running.pop()
        self.preempt(newest)
        if newest is seq:
            return False
    return True


# --- second
def make_room(self, seq):
    fits = self.block_manager.can_append
    while not fits(seq):
        newest = list(self.running)[-1]
        self.running.remove(newest)
        self.preempt(newest)
        if newest == seq:
            return False
    return True
