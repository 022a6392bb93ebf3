# ruff: noqa
DIAGNOSIS = """
You go on behind the first place where draft and choice differ, without adding the choice there. From that place on the model has read another text; its choice at that place is the last that counts.
"""


# --- first
def accept(draft, choices, eos):
    added = []
    for guess, choice in zip(draft, choices):
        if guess == choice:
            added.append(choice)
            if choice in eos:
                return added
    return added + [choices[-1]]


# --- second
def accept(draft, choices, eos):
    same = [choices[i] for i in range(len(draft)) if draft[i] == choices[i]] + [choices[len(draft)]]
    end = next((i for i, token in enumerate(same) if token in eos), len(same))
    return same[: end + 1]
