# ruff: noqa
# Right, and nothing like ours: a grader must not ask for our way of doing it.
from itertools import takewhile


def accept(draft, choices, eos):
    """By counting: how many agree from the front, and how many come before an end."""
    agree = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(draft, choices)))
    before_the_end = sum(1 for _ in takewhile(lambda token: token not in eos, choices))
    return choices[: min(agree, before_the_end) + 1]
