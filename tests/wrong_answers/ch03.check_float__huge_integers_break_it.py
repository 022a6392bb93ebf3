# ruff: noqa
DIAGNOSIS = """
An integer of Python can be larger than any float, and float() then raises OverflowError, which is neither of the
two errors that you promise. A caller who waits for ValueError does not catch it. To the user it is a value out of
range like any other.
"""


# --- first
def check_float(name, value, minimum=0.0, maximum=math.inf):
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    number = float(value)
    if not math.isfinite(number) or not minimum <= number <= maximum:
        raise ValueError(f"{name} must be from {minimum} to {maximum}, got {value!r}")
    return number


# --- second
def check_float(name, value, minimum=0.0, maximum=math.inf):
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise TypeError(f"{name}={value!r} is no number")
    if math.isfinite(value) and minimum <= float(value) <= maximum:
        return float(value)
    raise ValueError(f"{name}={value!r} is out of range")
