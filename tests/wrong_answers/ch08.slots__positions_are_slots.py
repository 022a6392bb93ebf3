# ruff: noqa
DIAGNOSIS = """
The positions themselves come back. They are the slots only of a sequence whose blocks happen to be 0, 1, 2, ...; the
table says where each block really lies.
"""


# --- first
def slots(self, seq, start, end):
    if not seq.block_table:
        return []
    return list(range(start, end))


# --- second
def slots(self, seq, start, end):
    found = []
    for position in range(start, end):
        if seq.block_table:
            found.append(position)
    return found
