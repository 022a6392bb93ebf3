# ruff: noqa
DIAGNOSIS = """
You choose one sequence before the loop, and when its going is not enough you preempt it again: it is not running any
more. Whoever has to go next is a new question: ask choose_victim each time.
"""


# --- first
def make_room(self, seq):
    victim = self.choose_victim(seq)
    while not self.block_manager.can_append(seq):
        self.preempt(victim)
        if victim is seq:
            return False
    return True


# --- second
def make_room(self, seq):
    named = []
    while not self.block_manager.can_append(seq):
        named = named or [self.choose_victim(seq)]
        self.preempt(named[0])
        if named[0] is seq:
            return False
    return True
