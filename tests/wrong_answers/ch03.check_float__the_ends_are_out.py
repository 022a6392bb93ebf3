# ruff: noqa
DIAGNOSIS = """
You refuse the ends of the range. temperature=0 and top_p=1.0 are common and stand exactly on an end; both ends
belong to the range. Look at your comparisons once more.
"""


# --- first
def check_float(name, value, minimum=0.0, maximum=math.inf):
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{name} is too large: {value!r}") from None
    if not math.isfinite(number) or not minimum < number < maximum:
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
    if math.isnan(number) or number <= minimum or number >= maximum:
        raise ValueError(f"{name}={value!r} is out of range")
    return number
