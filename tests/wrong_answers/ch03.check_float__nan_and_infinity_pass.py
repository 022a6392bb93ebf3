# ruff: noqa
DIAGNOSIS = """
You ask whether the number is too small or too large. For NaN both answers are no, because every comparison with it
is false, so it passes; and without an upper end infinity passes, too. Both have to be refused: a temperature of NaN
turns all probabilities of its request into NaN.
"""


# --- first
def check_float(name, value, minimum=0.0, maximum=math.inf):
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{name} is too large: {value!r}") from None
    if number < minimum or number > maximum:
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
    if number < minimum:
        raise ValueError(f"{name}={value!r} is below {minimum}")
    if number > maximum:
        raise ValueError(f"{name}={value!r} is above {maximum}")
    return number
