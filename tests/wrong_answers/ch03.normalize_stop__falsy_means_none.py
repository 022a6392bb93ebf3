# ruff: noqa
DIAGNOSIS = """
You take everything that is false for "no stop strings". None is, and so is "", but "" is something else: a stop
string that somebody forgot to fill in. Ask for None by its name, and refuse the empty string.
"""


# --- first
def normalize_stop(stop):
    if not stop:
        return ()
    strings = (stop,) if isinstance(stop, str) else as_tuple("stop", stop, "a non-empty string or a list of them")
    for string in strings:
        if not isinstance(string, str):
            raise TypeError(f"stop must be a non-empty string or a list of them, got {string!r}")
        if string == "":
            raise ValueError(f"stop must be a non-empty string or a list of them, got {string!r}")
    return strings


# --- second
def normalize_stop(stop):
    stop = stop or []
    if isinstance(stop, str):
        stop = [stop]
    try:
        strings = tuple(stop)
    except TypeError:
        raise TypeError(f"stop must be a non-empty string or a list of them, got {stop!r}") from None
    for string in strings:
        if isinstance(string, str) and string:
            continue
        kind = ValueError if string == "" else TypeError
        raise kind(f"stop: {string!r} is no non-empty string")
    return strings
