# ruff: noqa
DIAGNOSIS = """
You take the newest without asking. With the rule that we have it comes to the same, but a scheduler with another rule,
by priority perhaps, is not heard: your code throws out whom it pleases. Ask self.choose_victim(seq).
"""


# --- first
def make_room(self, seq):
    while not self.block_manager.can_append(seq):
        newest = self.running[-1]
        self.preempt(newest)
        if newest is seq:
            return False
    return True


# --- second
def make_room(self, seq):
    for candidate in reversed(list(self.running)):
        if self.block_manager.can_append(seq):
            return True
        self.preempt(candidate)
        if candidate.seq_id == seq.seq_id:
            break
    return seq in self.running
