# ruff: noqa
DIAGNOSIS = """
You check well, and then return the value as it came: an int stays an int, and a float of NumPy stays one, with its
few digits. The promise is a float of Python. Return what you have converted.
"""


# --- first
def check_float(name, value, minimum=0.0, maximum=math.inf):
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{name} is too large: {value!r}") from None
    if not math.isfinite(number) or not minimum <= number <= maximum:
        raise ValueError(f"{name} must be from {minimum} to {maximum}, got {value!r}")
    return value


# --- second
def check_float(name, value, minimum=0.0, maximum=math.inf):
    if not isinstance(value, numbers.Real) or value is True or value is False:
        raise TypeError(f"{name}={value!r} is no number")
    try:
        number = float(value)
    except OverflowError as error:
        raise ValueError(f"{name}={value!r}: {error}") from error
    if math.isfinite(number) and minimum <= number <= maximum:
        return value
    raise ValueError(f"{name}={value!r} is out of range")
