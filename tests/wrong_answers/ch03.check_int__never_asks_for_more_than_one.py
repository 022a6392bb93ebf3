# ruff: noqa
DIAGNOSIS = """
You never ask for more than 1, whatever the minimum is. It is different for each argument: top_k may be -1, and another
one may have to be 12 at least. Compare with the minimum as it was given.
"""


# --- first
def check_int(name, value, minimum):
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < min(minimum, 1):
        raise ValueError(f"{name} must be at least {minimum}, got {value}")
    return int(value)


# --- second
def check_int(name, value, minimum):
    if type(value) is bool or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name}: {value!r} is no integer")
    if value >= 1 or value >= minimum:
        return int(value)
    raise ValueError(f"{name}: {value!r} is below {minimum}")
