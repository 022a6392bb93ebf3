# ruff: noqa
DIAGNOSIS = """
You raise ValueError for everything. A value of the wrong type is another mistake than a number that is too small,
and Python has a name of its own for it: TypeError. Callers tell the two apart.
"""


# --- first
def check_int(name, value, minimum):
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < minimum:
        raise ValueError(f"{name} must be an integer of at least {minimum}, got {value!r}")
    return int(value)


# --- second
def check_int(name, value, minimum):
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        if int(value) >= minimum:
            return int(value)
    raise ValueError(f"{name}={value!r} is not accepted, only integers from {minimum}")
