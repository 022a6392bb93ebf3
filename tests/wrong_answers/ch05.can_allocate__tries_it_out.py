# ruff: noqa
DIAGNOSIS = """
Your answer is no, even for an empty pool. If you try it out with allocate: allocate asks can_allocate first, so the two
call each other until Python gives up, with a RecursionError, which is a RuntimeError. Count instead, and change nothing.
"""


# --- first
def can_allocate(self, seq):
    try:
        self.allocate(seq)
    except RuntimeError:
        return False
    self.deallocate(seq)
    return True


# --- second
def can_allocate(self, seq):
    fits = True
    try:
        self.allocate(seq)
        self.deallocate(seq)
    except Exception:
        fits = False
    return fits
