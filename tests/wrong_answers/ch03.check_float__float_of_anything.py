# ruff: noqa
DIAGNOSIS = """
You make a float of whatever comes. float("0.5") is 0.5 and float(True) is 1.0: texts and truth values are taken for
numbers, and nobody is told. Look at what kind of thing the value is before you convert it.
"""


# --- first
def check_float(name, value, minimum=0.0, maximum=math.inf):
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number, got {value!r}") from None
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or not minimum <= number <= maximum:
        raise ValueError(f"{name} must be from {minimum} to {maximum}, got {value!r}")
    return number


# --- second
def check_float(name, value, minimum=0.0, maximum=math.inf):
    number = None
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{name}={value!r} is too large") from None
    except Exception:
        raise TypeError(f"{name}={value!r} cannot be made a float") from None
    if math.isfinite(number) and minimum <= number <= maximum:
        return number
    raise ValueError(f"{name}={value!r} is out of range")
