# ruff: noqa
DIAGNOSIS = """
Your message shows the value as str writes it. For a text that leaves the quotes out, so "warm" looks like a name, and
"0.5" like a number. In an f-string, {value!r} writes it as one would type it.
"""


# --- first
def check_float(name, value, minimum=0.0, maximum=math.inf):
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {value}")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{name} is too large: {value}") from None
    if not math.isfinite(number) or not minimum <= number <= maximum:
        raise ValueError(f"{name} must be from {minimum} to {maximum}, got {value}")
    return number


# --- second
def check_float(name, value, minimum=0.0, maximum=math.inf):
    problem = f"{name}={value} is not accepted"
    if not isinstance(value, numbers.Real) or value is True or value is False:
        raise TypeError(problem)
    try:
        number = float(value)
    except OverflowError as error:
        raise ValueError(problem) from error
    if math.isfinite(number) and minimum <= number <= maximum:
        return number
    raise ValueError(problem)
