# ruff: noqa
DIAGNOSIS = """
Only a list is accepted. A tuple or a generator of strings says the same thing, and the promise is to take any
collection. Ask what can be gone through, not what it is called.
"""


# --- first
def normalize_stop(stop):
    if stop is None:
        return ()
    if isinstance(stop, str):
        stop = [stop]
    if not isinstance(stop, list):
        raise TypeError(f"stop must be a non-empty string or a list of them, got {stop!r}")
    strings = tuple(stop)
    for string in strings:
        if not isinstance(string, str):
            raise TypeError(f"stop must be a non-empty string or a list of them, got {string!r}")
        if string == "":
            raise ValueError(f"stop must be a non-empty string or a list of them, got {string!r}")
    return strings


# --- second
def normalize_stop(stop):
    strings = {str: lambda: (stop,), list: lambda: tuple(stop), type(None): lambda: ()}.get(type(stop))
    if strings is None:
        raise TypeError(f"stop: {stop!r} is no non-empty string and no list of them")
    for string in strings():
        if not isinstance(string, str):
            raise TypeError(f"stop: {string!r} is no non-empty string")
        if not string:
            raise ValueError(f"stop: {string!r} is no non-empty string")
    return strings()
