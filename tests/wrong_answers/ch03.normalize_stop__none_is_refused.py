# ruff: noqa
DIAGNOSIS = """
None is refused. It is how a caller says that there are no stop strings, and what forms and other programs send when
nothing was filled in. It has to come out as an empty tuple.
"""


# --- first
def normalize_stop(stop):
    if isinstance(stop, str):
        stop = [stop]
    try:
        strings = tuple(stop)
    except TypeError:
        raise TypeError(f"stop must be a non-empty string or a list of them, got {stop!r}") from None
    for string in strings:
        if not isinstance(string, str):
            raise TypeError(f"stop must be a non-empty string or a list of them, got {string!r}")
        if string == "":
            raise ValueError(f"stop must be a non-empty string or a list of them, got {string!r}")
    return strings


# --- second
def normalize_stop(stop):
    strings = []
    if isinstance(stop, str):
        stop = (stop,)
    if not hasattr(stop, "__iter__"):
        raise TypeError(f"stop: expected a non-empty string or several, got {stop!r}")
    for string in stop:
        if not isinstance(string, str):
            raise TypeError(f"stop: expected a non-empty string, got {string!r}")
        if not string:
            raise ValueError(f"stop: expected a non-empty string, got {string!r}")
        strings.append(string)
    return tuple(strings)
