# ruff: noqa
DIAGNOSIS = """
Somebody is preempted also when there is a slot already, or a free block. Every step of decode then throws a sequence
out for nothing. Ask can_append first.
"""


# --- first
def make_room(self, seq):
    while True:
        victim = self.choose_victim(seq)
        self.preempt(victim)
        if victim is seq:
            return False
        if self.block_manager.can_append(seq):
            return True


# --- second
def make_room(self, seq):
    last = self.choose_victim(seq)
    self.preempt(last)
    while last is not seq and not self.block_manager.can_append(seq):
        last = self.choose_victim(seq)
        self.preempt(last)
    return last is not seq
