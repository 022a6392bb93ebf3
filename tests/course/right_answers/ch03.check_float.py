# ruff: noqa
# Right, and nothing like ours: a grader must not ask for our way of doing it.
def check_float(name, value, minimum=0.0, maximum=math.inf):
    if type(value) is bool or not hasattr(type(value), "__float__") or not hasattr(type(value), "__round__"):
        raise TypeError(f"the argument {name} was {value!r}, and should be a number")
    largest = 1.7976931348623157e308
    number = float(value) if -largest <= value <= largest else float("inf")
    if number - number == 0.0 and float(minimum) <= number and number <= float(maximum):
        return number
    raise ValueError(f"the argument {name} was {value!r}, and should be finite, from {minimum} to {maximum}")
