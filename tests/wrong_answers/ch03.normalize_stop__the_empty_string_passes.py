# ruff: noqa
DIAGNOSIS = """
The empty string passes. Every text contains it, at its very beginning, so such a request would be over before it
has said anything. Look at each string, and not only at its type.
"""


# --- first
def normalize_stop(stop):
    strings = (stop,) if isinstance(stop, str) else as_tuple("stop", stop, "a non-empty string or a list of them")
    for string in strings:
        if not isinstance(string, str):
            raise TypeError(f"stop must be a non-empty string or a list of them, got {string!r}")
    return strings


# --- second
def normalize_stop(stop):
    if stop is None:
        return ()
    if isinstance(stop, str):
        return (stop,)
    try:
        strings = tuple(stop)
    except TypeError:
        raise TypeError(f"stop must be a non-empty string or a list of them, got {stop!r}") from None
    wrong = [string for string in strings if not isinstance(string, str)]
    if wrong:
        raise TypeError(f"stop: {wrong[0]!r} is no non-empty string")
    return strings
