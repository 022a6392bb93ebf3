# ruff: noqa
DIAGNOSIS = """
You accept every number that is equal to an integer, so 3.0 passes. A float that happens to be whole is still a
float: the same computation gives 2.9999999999999996 tomorrow, and then it is refused. Ask for the kind of number,
not for its value.
"""


# --- first
def check_int(name, value, minimum):
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name} must be an integer, got {value!r}") from None
    if isinstance(value, bool) or number != value:
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if number < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {value!r}")
    return number


# --- second
def check_int(name, value, minimum):
    is_whole = False
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        is_whole = value % 1 == 0
    if not is_whole:
        raise TypeError(f"{name}: {value!r} is not whole")
    if int(value) >= minimum:
        return int(value)
    raise ValueError(f"{name}: {value!r} is below {minimum}")
