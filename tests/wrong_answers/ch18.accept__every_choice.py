# ruff: noqa
DIAGNOSIS = """
You add every choice, whether the draft agrees or not. Behind a wrong token the model has read another text than yours.
"""


# --- first
def accept(draft, choices, eos):
    added = []
    for choice in choices:
        added.append(choice)
        if choice in eos:
            break
    return added


# --- second
def accept(draft, choices, eos):
    ends = [i for i, token in enumerate(choices) if token in eos]
    return choices[: ends[0] + 1] if ends else list(choices)
