# ruff: noqa
DIAGNOSIS = """
You use assert. It raises AssertionError, which says that the program itself is broken, and it is not there at all
when Python runs with -O: then everything passes. What a caller gets wrong is told with raise, and with TypeError or
ValueError.
"""


# --- first
def check_int(name, value, minimum):
    is_right = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    assert is_right, f"{name} must be an integer, got {value!r}"
    assert value >= minimum, f"{name} must be at least {minimum}, got {value!r}"
    return int(value)


# --- second
def check_int(name, value, minimum):
    is_integer = isinstance(value, numbers.Integral) and type(value) is not bool
    assert is_integer, f"{name} is {value!r}, no integer"
    number = operator.index(value)
    assert not number < minimum, f"{name} is {value!r}, below {minimum}"
    return number
