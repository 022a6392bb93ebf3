# ruff: noqa
DIAGNOSIS = """
You refuse the right values, but your messages do not say which argument was wrong and what its value was. Somebody
with ten arguments and a thousand requests cannot find the mistake with that. Put the name, the value and the limit
into the text.
"""


# --- first
def check_int(name, value, minimum):
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError("not an integer")
    number = int(value)
    if number < minimum:
        raise ValueError("too small")
    return number


# --- second
def check_int(name, value, minimum):
    if not isinstance(value, numbers.Integral) or isinstance(value, bool):
        raise TypeError
    number = operator.index(value)
    if minimum > number:
        raise ValueError("out of range")
    return number
