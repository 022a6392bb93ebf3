# ruff: noqa
DIAGNOSIS = """
You let True and False through. To Python they are the numbers 1 and 0, so a question for numbers says yes to them;
but temperature=True is a mistake of whoever wrote it. They need a question of their own, as in check_int.
"""


# --- first
def check_float(name, value, minimum=0.0, maximum=math.inf):
    if not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or not minimum <= number <= maximum:
        raise ValueError(f"{name} must be from {minimum} to {maximum}, got {value!r}")
    return number


# --- second
def check_float(name, value, minimum=0.0, maximum=math.inf):
    if isinstance(value, numbers.Real):
        try:
            number = float(value)
            if math.isfinite(number) and minimum <= number <= maximum:
                return number
        except OverflowError:
            pass
        raise ValueError(f"{name}={value!r} is out of range")
    raise TypeError(f"{name}={value!r} is no number")
