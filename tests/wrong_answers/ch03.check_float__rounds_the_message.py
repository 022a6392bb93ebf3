# ruff: noqa
DIAGNOSIS = """
The message shows the value rounded to two decimals. Somebody who gave 1.001 where 1 is the end of the range then reads that
1.00 is refused. Show the value as it was given: {value}, without a format.
"""


# --- first
def check_float(name, value, minimum=0.0, maximum=math.inf):
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or not minimum <= number <= maximum:
        raise ValueError(
            f"{name} must be a finite number in [{minimum}, {maximum}], got {f'{value:.2f}' if isinstance(value, float) else value}"
        )
    return number


# --- second
def check_float(name, value, minimum=0.0, maximum=math.inf):
    if type(value) is bool or not isinstance(value, numbers.Real):
        raise TypeError("{} must be a number, got {!r}".format(name, value))
    try:
        number = float(value)
        is_good = math.isfinite(number) and minimum <= number <= maximum
    except OverflowError:
        is_good = False
    if not is_good:
        raise ValueError(
            "{} must be finite and in the range, got {}".format(
                name, "%.2f" % value if isinstance(value, float) else value
            )
        )
    return number
