# ruff: noqa
DIAGNOSIS = """
You refuse large integers that floats can hold. An integer of Python has no largest value (sys.maxsize is the length of the
longest list), and floats reach up to 1.8e308. Only where float() itself raises OverflowError is an integer too large.
"""


# --- first
def check_float(name, value, minimum=0.0, maximum=math.inf):
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if (
        isinstance(value, int)
        and not -(2**63) <= value < 2**63
        or not math.isfinite(number)
        or not minimum <= number <= maximum
    ):
        raise ValueError(f"{name} must be a finite number in [{minimum}, {maximum}], got {value}")
    return number


# --- second
def check_float(name, value, minimum=0.0, maximum=math.inf):
    if type(value) is bool or not isinstance(value, numbers.Real):
        raise TypeError("{} must be a number, got {!r}".format(name, value))
    try:
        number = float(value)
        is_good = (
            (not isinstance(value, int) or -(2**63) <= value < 2**63)
            and math.isfinite(number)
            and minimum <= number <= maximum
        )
    except OverflowError:
        is_good = False
    if not is_good:
        raise ValueError("{} must be finite and in the range, got {}".format(name, value))
    return number
