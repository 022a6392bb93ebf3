# ruff: noqa
DIAGNOSIS = """
The sequence that asks is never preempted: another one has to go in its place. Then that one takes the blocks back, and
so on, and much is computed again and again. If choose_victim names the one that asks, it has to go.
"""


# --- first
def make_room(self, seq):
    while not self.block_manager.can_append(seq):
        victim = self.choose_victim(seq)
        others = [other for other in self.running if other is not seq]
        if victim is seq and others:
            victim = others[-1]
        self.preempt(victim)
        if victim is seq:
            return False
    return True


# --- second
def make_room(self, seq):
    while not self.block_manager.can_append(seq):
        victim = self.choose_victim(seq)
        if victim is seq and len(self.running) > 1:
            victim = next(other for other in reversed(self.running) if other is not seq)
        self.preempt(victim)
        if victim is seq:
            return False
    return True
