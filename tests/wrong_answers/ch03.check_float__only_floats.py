# ruff: noqa
DIAGNOSIS = """
You accept only what is a float already. temperature=2 is an int, and np.float32(0.5) is no float of Python either;
both are numbers that a user may well write. Ask for what all real numbers have in common.
"""


# --- first
def check_float(name, value, minimum=0.0, maximum=math.inf):
    if not isinstance(value, float):
        raise TypeError(f"{name} must be a float, got {value!r}")
    if not math.isfinite(value) or not minimum <= value <= maximum:
        raise ValueError(f"{name} must be from {minimum} to {maximum}, got {value!r}")
    return float(value)


# --- second
def check_float(name, value, minimum=0.0, maximum=math.inf):
    if isinstance(value, float):
        if math.isfinite(value) and value >= minimum and value <= maximum:
            return 1.0 * value
        raise ValueError(f"{name}={value!r} is out of range")
    raise TypeError(f"{name}={value!r} is a {type(value).__name__}")
