# ruff: noqa
DIAGNOSIS = """
A maximum of 0 is taken for none: 0 is false where Python asks for a condition, as in `if maximum` or `maximum or math.inf`.
0 is a limit like any other. There is always a maximum, and where none was given it is infinity, so nothing has to be asked.
"""


# --- first
def check_float(name, value, minimum=0.0, maximum=math.inf):
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or number < minimum or (maximum and number > maximum):
        raise ValueError(f"{name} must be a finite number in [{minimum}, {maximum}], got {value}")
    return number


# --- second
def check_float(name, value, minimum=0.0, maximum=math.inf):
    if type(value) is bool or not isinstance(value, numbers.Real):
        raise TypeError("{} must be a number, got {!r}".format(name, value))
    try:
        number = float(value)
        is_good = math.isfinite(number) and minimum <= number <= (maximum or math.inf)
    except OverflowError:
        is_good = False
    if not is_good:
        raise ValueError("{} must be finite and in the range, got {}".format(name, value))
    return number
