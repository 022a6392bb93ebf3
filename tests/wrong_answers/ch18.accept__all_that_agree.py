# ruff: noqa
DIAGNOSIS = """
You keep every token that agrees, also behind one that does not. What the model chose there was chosen for a text that has
the wrong token in it.
"""


# --- first
def accept(draft, choices, eos):
    added = []
    for i, choice in enumerate(choices):
        if i == len(draft) or draft[i] == choice:
            added.append(choice)
        elif len(added) == i:
            added.append(choice)
        if added[-1:] and added[-1] in eos:
            break
    return added


# --- second
def accept(draft, choices, eos):
    first = next((i for i, (d, c) in enumerate(zip(draft, choices)) if d != c), None)
    added = []
    for i in range(len(choices)):
        if i < len(draft) and draft[i] != choices[i] and i != first:
            continue
        added += [choices[i]]
        if choices[i] in eos:
            return added
    return added
