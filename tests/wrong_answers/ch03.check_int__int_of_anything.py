# ruff: noqa
DIAGNOSIS = """
You make an integer of whatever comes. int(3.7) is 3 and int("3") is 3, too: the value is changed on the way, and
nobody is told. Look at what kind of thing the value is before you convert it.
"""


# --- first
def check_int(name, value, minimum):
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name} must be an integer, got {value!r}") from None
    if number < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {value!r}")
    return number


# --- second
def check_int(name, value, minimum):
    number = None
    try:
        number = int(value)
    except Exception:
        pass
    if number is None:
        raise TypeError(f"cannot make an integer of {name}={value!r}")
    if not number >= minimum:
        raise ValueError(f"{name}={value!r} is smaller than {minimum}")
    return number
