# ruff: noqa
DIAGNOSIS = """
The sequence that asks is never preempted: an older one has to go in its place. Then the older one takes the blocks
back, and so on, and much is computed again and again. If the newest is the one that asks, it has to go.
"""


# --- first
def make_room(self, seq):
    while not self.block_manager.can_append(seq):
        others = [other for other in self.running if other is not seq]
        if not others:
            self.preempt(seq)
            return False
        self.preempt(others[-1])
    return True


# --- second
def make_room(self, seq):
    while not self.block_manager.can_append(seq):
        victim = self.running[-1]
        if victim is seq and len(self.running) > 1:
            victim = self.running[-2]
        self.preempt(victim)
        if victim is seq:
            return False
    return True
