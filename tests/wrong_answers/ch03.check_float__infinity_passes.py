# ruff: noqa
DIAGNOSIS = """
NaN is refused, but infinity is not: where the range has no upper end, inf <= inf is true. Infinity is of the right
type and in the range, and still no number to compute with. It needs a question of its own.
"""


# --- first
def check_float(name, value, minimum=0.0, maximum=math.inf):
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{name} is too large: {value!r}") from None
    if not minimum <= number <= maximum:
        raise ValueError(f"{name} must be from {minimum} to {maximum}, got {value!r}")
    return number


# --- second
def check_float(name, value, minimum=0.0, maximum=math.inf):
    if not isinstance(value, numbers.Real) or value is True or value is False:
        raise TypeError(f"{name}={value!r} is no number")
    try:
        number = float(value)
    except OverflowError as error:
        raise ValueError(f"{name}={value!r}: {error}") from error
    if math.isnan(number) or number < minimum or number > maximum:
        raise ValueError(f"{name}={value!r} is out of range")
    return number
