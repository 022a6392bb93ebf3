# ruff: noqa
DIAGNOSIS = """
You ask choose_victim about another sequence than the one that needs the block. A rule that compares the two, by priority
perhaps, then answers another question. It is called with seq.
"""


# --- first
def make_room(self, seq):
    while not self.block_manager.can_append(seq):
        victim = self.choose_victim(self.running[-1])
        self.preempt(victim)
        if victim is seq:
            return False
    return True


# --- second
def make_room(self, seq):
    if self.block_manager.can_append(seq):
        return True
    newest = list(self.running).pop()
    victim = self.choose_victim(newest)
    self.preempt(victim)
    return victim is not seq and self.make_room(seq)
