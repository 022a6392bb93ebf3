# ruff: noqa
DIAGNOSIS = """
You add what was accepted, and not the token that the model chose behind it. That one comes from the same call; without it
a wrong draft adds nothing at all, and the text never ends.
"""


# --- first
def accept(draft, choices, eos):
    added = []
    for token, choice in zip(draft, choices):
        if token != choice:
            break
        added.append(token)
        if token in eos:
            break
    return added


# --- second
def accept(draft, choices, eos):
    count = 0
    while count < len(draft) and draft[count] == choices[count]:
        count += 1
    added = draft[:count]
    ends = [i for i, token in enumerate(added) if token in eos]
    return added[: ends[0] + 1] if ends else added
