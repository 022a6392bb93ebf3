# ruff: noqa
DIAGNOSIS = """
You move a value that is out of range to the nearest end, in silence. The user asked for temperature=-1 and gets 0,
another text, and no word about it. A value that cannot be right is refused, not repaired.
"""


# --- first
def check_float(name, value, minimum=0.0, maximum=math.inf):
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{name} is too large: {value!r}") from None
    if not math.isfinite(number):
        raise ValueError(f"{name} must be finite, got {value!r}")
    return float(min(max(number, minimum), maximum))


# --- second
def check_float(name, value, minimum=0.0, maximum=math.inf):
    if not isinstance(value, numbers.Real) or value is True or value is False:
        raise TypeError(f"{name}={value!r} is no number")
    try:
        number = float(value)
    except OverflowError as error:
        raise ValueError(f"{name}={value!r}: {error}") from error
    if math.isnan(number) or math.isinf(number):
        raise ValueError(f"{name}={value!r} is not finite")
    if number < minimum:
        number = minimum
    elif number > maximum:
        number = maximum
    return float(number)
