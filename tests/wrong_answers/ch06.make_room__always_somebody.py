# ruff: noqa
DIAGNOSIS = """
Somebody is preempted also when there is a slot already, or a free block. Every step of decode then throws a sequence
out for nothing. Ask can_append first.
"""


# --- first
def make_room(self, seq):
    while True:
        newest = self.running[-1]
        self.preempt(newest)
        if newest is seq:
            return False
        if self.block_manager.can_append(seq):
            return True


# --- second
def make_room(self, seq):
    last = self.running[-1]
    self.preempt(last)
    while last is not seq and not self.block_manager.can_append(seq):
        last = self.running[-1]
        self.preempt(last)
    return last is not seq
