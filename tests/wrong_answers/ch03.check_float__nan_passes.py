# ruff: noqa
DIAGNOSIS = """
Infinity is refused, but NaN still passes. NaN is equal to nothing, not even to itself, and smaller or larger than
nothing, so neither == nor < will ever find it. Python's math module has a question for it.
"""


# --- first
def check_float(name, value, minimum=0.0, maximum=math.inf):
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{name} is too large: {value!r}") from None
    if number == math.nan or number in (math.inf, -math.inf) or number < minimum or number > maximum:
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
    if math.isinf(number) or minimum > number or maximum < number:
        raise ValueError(f"{name}={value!r} is out of range")
    return number
