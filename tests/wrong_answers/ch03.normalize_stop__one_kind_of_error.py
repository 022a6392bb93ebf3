# ruff: noqa
DIAGNOSIS = """
You raise ValueError for everything. A number among the stop strings is another mistake than an empty string: it is
the wrong kind of thing, and Python has a name of its own for that, TypeError. Callers tell the two apart.
"""


# --- first
def normalize_stop(stop):
    strings = (stop,) if isinstance(stop, str) else as_tuple("stop", stop, "a non-empty string or a list of them")
    for string in strings:
        if not isinstance(string, str) or not string:
            raise ValueError(f"stop must be a non-empty string or a list of them, got {string!r}")
    return strings


# --- second
def normalize_stop(stop):
    if stop is None:
        return ()
    if isinstance(stop, str):
        stop = [stop]
    try:
        strings = tuple(stop)
    except TypeError:
        raise TypeError(f"stop must be a non-empty string or a list of them, got {stop!r}") from None
    if all(isinstance(string, str) and string != "" for string in strings):
        return strings
    wrong = [string for string in strings if not isinstance(string, str) or string == ""]
    raise ValueError(f"stop: {wrong[0]!r} is no non-empty string")
