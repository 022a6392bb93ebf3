# ruff: noqa
DIAGNOSIS = """
You check well, and then return the value as it came. An np.int64 stays one, and it does not behave like an int
everywhere: it can overflow, and json cannot write it. The promise is an int of Python.
"""


# --- first
def check_int(name, value, minimum):
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {value!r}")
    return value


# --- second
def check_int(name, value, minimum):
    is_integer = isinstance(value, numbers.Integral) and value is not True and value is not False
    if not is_integer:
        raise TypeError(f"{name}: {value!r} is no integer")
    if int(value) >= minimum:
        return value
    raise ValueError(f"{name}: {value!r} is below {minimum}")
