# ruff: noqa
DIAGNOSIS = """
You accept Python's own int and float, and np.float32(0.5) is neither. Numbers that come out of arrays are common,
and they are numbers as good as any. Ask for what all real numbers have in common, whichever library they come from.
"""


# --- first
def check_float(name, value, minimum=0.0, maximum=math.inf):
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, got {value!r}")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{name} is too large: {value!r}") from None
    if not math.isfinite(number) or not minimum <= number <= maximum:
        raise ValueError(f"{name} must be from {minimum} to {maximum}, got {value!r}")
    return number


# --- second
def check_float(name, value, minimum=0.0, maximum=math.inf):
    if type(value) not in (int, float):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}")
    if abs(value) > 1.7976931348623157e308 or value != value:
        raise ValueError(f"{name}={value!r} is not finite")
    if minimum <= value <= maximum:
        return float(value)
    raise ValueError(f"{name}={value!r} is out of range")
