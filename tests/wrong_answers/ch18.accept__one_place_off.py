# ruff: noqa
DIAGNOSIS = """
You compare each token of the draft with the model's choice behind it. choices[0] comes before the draft: it belongs to
draft[0].
"""


# --- first
def accept(draft, choices, eos):
    added = []
    for i, choice in enumerate(choices):
        added.append(choice)
        if choice in eos or i == len(draft) or draft[i] != choices[i + 1]:
            break
    return added


# --- second
def accept(draft, choices, eos):
    count = 0
    while count < len(draft) and draft[count] == choices[count + 1]:
        count += 1
    added = choices[: count + 1]
    ends = [i for i, token in enumerate(added) if token in eos]
    return added[: ends[0] + 1] if ends else added
