# ruff: noqa
DIAGNOSIS = """
The sequence that asks goes at once, whoever choose_victim would have named. Under pressure the oldest is thrown out
again and again, just before it is done, and much is computed twice. Ask choose_victim; it may be the one that asks.
"""


# --- first
def make_room(self, seq):
    if self.block_manager.can_append(seq):
        return True
    self.preempt(seq)
    return False


# --- second
def make_room(self, seq):
    there_is = self.block_manager.can_append(seq)
    if not there_is:
        self.preempt(seq)
    return there_is
