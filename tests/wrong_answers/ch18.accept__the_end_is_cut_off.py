# ruff: noqa
DIAGNOSIS = """
You leave out the end token. It belongs to the answer, as it does in the engine: without it nobody knows that the text is
over.
"""


# --- first
def accept(draft, choices, eos):
    added = []
    for i, choice in enumerate(choices):
        if choice in eos:
            break
        added.append(choice)
        if i == len(draft) or draft[i] != choice:
            break
    return added


# --- second
def accept(draft, choices, eos):
    count = 0
    while count < len(draft) and draft[count] == choices[count]:
        count += 1
    added = draft[:count] + [choices[count]]
    ends = [i for i, token in enumerate(added) if token in eos]
    return added[: ends[0]] if ends else added
