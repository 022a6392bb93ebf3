# ruff: noqa
DIAGNOSIS = """
You add tokens behind an end token. The text ends there, whatever the draft had in mind.
"""


# --- first
def accept(draft, choices, eos):
    added = []
    for i, choice in enumerate(choices):
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
    return added
