# ruff: noqa
DIAGNOSIS = """
You keep every token that agrees, also behind one that does not. What the model chose there was chosen for a text that has
the wrong token in it.
"""


# --- first
def accept(draft, choices, eos):
    added, is_wrong = [], False
    for i, choice in enumerate(choices):
        agrees = i == len(draft) or draft[i] == choice
        if agrees or not is_wrong:
            added.append(choice)
            if choice in eos:
                break
        is_wrong = is_wrong or not agrees
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
