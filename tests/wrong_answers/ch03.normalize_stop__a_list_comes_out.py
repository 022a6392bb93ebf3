# ruff: noqa
DIAGNOSIS = """
You return a list. A list can be changed by whoever holds it, after it has been checked, and the fields of
SamplingParams are shared by many requests. The promise is a tuple, in every case.
"""


# --- first
def normalize_stop(stop):
    strings = [stop] if isinstance(stop, str) else list(as_tuple("stop", stop, "a non-empty string or a list of them"))
    for string in strings:
        if not isinstance(string, str):
            raise TypeError(f"stop must be a non-empty string or a list of them, got {string!r}")
        if string == "":
            raise ValueError(f"stop must be a non-empty string or a list of them, got {string!r}")
    return strings


# --- second
def normalize_stop(stop):
    if stop is None:
        return []
    if isinstance(stop, str):
        stop = [stop]
    found = []
    try:
        strings = tuple(stop)
    except TypeError:
        raise TypeError(f"stop must be a non-empty string or a list of them, got {stop!r}") from None
    for string in strings:
        if not isinstance(string, str):
            raise TypeError(f"stop: {string!r} is no non-empty string")
        if not string:
            raise ValueError(f"stop: {string!r} is no non-empty string")
        found += [string]
    return found
