# ruff: noqa
DIAGNOSIS = """
You refuse the minimum itself. It is the smallest value that is accepted, so max_tokens=1 has to pass where the
minimum is 1. Look at your comparison once more: which side does equality fall on?
"""


# --- first
def check_int(name, value, minimum):
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    number = int(value)
    if number <= minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {value!r}")
    return number


# --- second
def check_int(name, value, minimum):
    if not isinstance(value, numbers.Integral) or isinstance(value, bool):
        raise TypeError(f"{name}: {value!r} is no integer")
    if int(value) > minimum:
        return int(value)
    raise ValueError(f"{name}: {value!r} is not above {minimum}")
