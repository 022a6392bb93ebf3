# ruff: noqa
DIAGNOSIS = """
A string on its own is taken apart into its letters: with stop="END" the text ends at the first E, N or D. A string
is a collection, too, so going through it works and does the wrong thing. Recognize it before you go through
anything.
"""


# --- first
def normalize_stop(stop):
    strings = as_tuple("stop", stop, "a non-empty string or a list of them")
    if stop == "":
        raise ValueError("stop must be a non-empty string or a list of them, got ''")
    for string in strings:
        if not isinstance(string, str):
            raise TypeError(f"stop must be a non-empty string or a list of them, got {string!r}")
        if string == "":
            raise ValueError(f"stop must be a non-empty string or a list of them, got {string!r}")
    return strings


# --- second
def normalize_stop(stop):
    if stop is None:
        return ()
    if isinstance(stop, str) and not stop:
        raise ValueError(f"stop must be a non-empty string, got {stop!r}")
    try:
        strings = tuple(stop)
    except TypeError:
        raise TypeError(f"stop must be a non-empty string or a list of them, got {stop!r}") from None
    for string in strings:
        if not isinstance(string, str):
            raise TypeError(f"every stop string must be a non-empty string, got {string!r}")
        if len(string) == 0:
            raise ValueError(f"every stop string must be a non-empty string, got {string!r}")
    return strings
