# ruff: noqa
DIAGNOSIS = """
You ask for Python's own int, and np.int64(3) is none. Numbers that come out of arrays are common, and they are
whole numbers as good as any. Ask for what all integers have in common, whichever library they come from.
"""


# --- first
def check_int(name, value, minimum):
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {value!r}")
    return value


# --- second
def check_int(name, value, minimum):
    if type(value) is not int:
        raise TypeError(f"{name} is {value!r}, which is a {type(value).__name__} and no int")
    if value >= minimum:
        return value
    raise ValueError(f"{name} is {value!r}, and the smallest accepted value is {minimum}")
