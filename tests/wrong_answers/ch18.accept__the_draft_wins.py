# ruff: noqa
DIAGNOSIS = """
Where draft and choice differ you add the token of the draft. The model's choice is what greedy decoding would write.
"""


# --- first
def accept(draft, choices, eos):
    added = []
    for i, choice in enumerate(choices):
        added.append(draft[i] if i < len(draft) else choice)
        if added[-1] in eos or i == len(draft) or draft[i] != choice:
            break
    return added


# --- second
def accept(draft, choices, eos):
    count = 0
    while count < len(draft) and draft[count] == choices[count]:
        count += 1
    added = (draft + choices[-1:])[: count + 1]
    ends = [i for i, token in enumerate(added) if token in eos]
    return added[: ends[0] + 1] if ends else added
