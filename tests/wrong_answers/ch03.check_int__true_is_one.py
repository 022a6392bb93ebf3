# ruff: noqa
DIAGNOSIS = """
You let True and False through. To Python they are integers, the numbers 1 and 0, so a question for integers says
yes to them; but max_tokens=True is a mistake of whoever wrote it, not the wish for one token. They need a question
of their own.
"""


# --- first
def check_int(name, value, minimum):
    if not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    number = int(value)
    if number < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {value!r}")
    return number


# --- second
def check_int(name, value, minimum):
    try:
        number = 0 + operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: {value!r} is no integer") from None
    if minimum > number:
        raise ValueError(f"{name}: {value!r} is below {minimum}")
    return number
