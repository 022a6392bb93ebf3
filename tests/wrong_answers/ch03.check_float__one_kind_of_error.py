# ruff: noqa
DIAGNOSIS = """
Everything is refused with ValueError. A text, or True, is the wrong kind of thing, not a number with a bad value: that is
TypeError. They are different mistakes, and a caller may handle them differently.
"""


# --- first
def check_float(name, value, minimum=0.0, maximum=math.inf):
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ValueError(f"{name} must be a number, got {value!r}")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{name} is too large: {value!r}") from None
    if not math.isfinite(number) or not minimum <= number <= maximum:
        raise ValueError(f"{name} must be from {minimum} to {maximum}, got {value!r}")
    return number


# --- second
def check_float(name, value, minimum=0.0, maximum=math.inf):
    is_number = isinstance(value, numbers.Real) and value is not True and value is not False
    try:
        if is_number and math.isfinite(float(value)) and minimum <= value <= maximum:
            return float(value)
    except OverflowError:
        pass
    raise ValueError(f"{name}={value!r} is not accepted")
