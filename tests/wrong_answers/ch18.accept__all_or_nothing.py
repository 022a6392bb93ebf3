# ruff: noqa
DIAGNOSIS = """
You accept the draft only as a whole. What agrees before the first difference counts, too.
"""


# --- first
def accept(draft, choices, eos):
    added = list(choices) if draft == choices[:-1] else choices[:1]
    for i, token in enumerate(added):
        if token in eos:
            return added[: i + 1]
    return added


# --- second
def accept(draft, choices, eos):
    wanted = len(choices) if all(d == c for d, c in zip(draft, choices)) else 1
    added = []
    while len(added) < wanted and not (added and added[-1] in eos):
        added.append(choices[len(added)])
    return added
