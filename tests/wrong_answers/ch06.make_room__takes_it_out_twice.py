# ruff: noqa
DIAGNOSIS = """
You take the sequence out of running yourself, and then preempt, which takes it out, too, does not find it. Leave it
where it is: preempt does all that belongs to it.
"""


# --- first
def make_room(self, seq):
    while not self.block_manager.can_append(seq):
        victim = self.choose_victim(seq)
        self.running.remove(victim)
        self.preempt(victim)
        if victim is seq:
            return False
    return True


# --- second
def make_room(self, seq):
    fits = self.block_manager.can_append
    while not fits(seq):
        place = self.running.index(self.choose_victim(seq))
        victim = self.running[place]
        del self.running[place]
        self.preempt(victim)
        if victim == seq:
            return False
    return True
