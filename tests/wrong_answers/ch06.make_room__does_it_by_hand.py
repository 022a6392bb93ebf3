# ruff: noqa
DIAGNOSIS = """
You do by hand what preempt does, and num_preemptions does not grow. What belongs to a preemption is in one place, so
that nothing is forgotten: call preempt.
"""


# --- first
def make_room(self, seq):
    while not self.block_manager.can_append(seq):
        victim = self.choose_victim(seq)
        self.running.remove(victim)
        self.block_manager.deallocate(victim)
        victim.status = SequenceStatus.WAITING
        victim.num_scheduled_tokens = 0
        self.waiting.appendleft(victim)
        if victim is seq:
            return False
    return True


# --- second
def make_room(self, seq):
    gone = None
    while gone is not seq and not self.block_manager.can_append(seq):
        gone = self.choose_victim(seq)
        del self.running[self.running.index(gone)]
        gone.status, gone.num_scheduled_tokens = SequenceStatus.WAITING, 0
        self.waiting.insert(0, gone)
        self.block_manager.deallocate(gone)
    return gone is not seq
