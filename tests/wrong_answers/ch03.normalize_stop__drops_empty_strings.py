# ruff: noqa
DIAGNOSIS = """
You drop empty strings in silence. Whoever passes one has made a mistake, perhaps a variable that was never filled,
and now waits for a stop that does not come. A mistake is refused with its name, not repaired.
"""


# --- first
def normalize_stop(stop):
    strings = (stop,) if isinstance(stop, str) else as_tuple("stop", stop, "a non-empty string or a list of them")
    for string in strings:
        if not isinstance(string, str):
            raise TypeError(f"stop must be a non-empty string or a list of them, got {string!r}")
    return tuple(string for string in strings if string)


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
    kept = []
    for string in strings:
        if not isinstance(string, str):
            raise TypeError(f"stop: {string!r} is no non-empty string")
        if string != "":
            kept.append(string)
    return tuple(kept)
