# ruff: noqa
DIAGNOSIS = """
You go through the collection once to check it, and a second time to make the tuple. An iterator or a generator is
used up after the first time: what comes out is empty, and the request never stops. Make the tuple first, then look
at the tuple.
"""


# --- first
def normalize_stop(stop):
    if stop is None:
        return ()
    if isinstance(stop, str):
        stop = (stop,)
    try:
        iter(stop)
    except TypeError:
        raise TypeError(f"stop must be a non-empty string or a list of them, got {stop!r}") from None
    for string in stop:
        if not isinstance(string, str):
            raise TypeError(f"stop must be a non-empty string or a list of them, got {string!r}")
        if string == "":
            raise ValueError(f"stop must be a non-empty string or a list of them, got {string!r}")
    return tuple(stop)


# --- second
def normalize_stop(stop):
    stop = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if not hasattr(stop, "__iter__"):
        raise TypeError(f"stop: {stop!r} is no non-empty string and no list of them")
    kinds = [(string, type(string)) for string in stop]
    for string, kind in kinds:
        if kind is not str:
            raise TypeError(f"stop: {string!r} is no non-empty string")
        if not string:
            raise ValueError(f"stop: {string!r} is no non-empty string")
    return tuple(string for string in stop)
