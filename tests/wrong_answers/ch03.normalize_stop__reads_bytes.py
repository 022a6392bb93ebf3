# ruff: noqa
DIAGNOSIS = """
You make text of bytes. Bytes are not characters yet: somebody has to know the encoding, and the guess may be wrong.
Only strings are accepted here; everything else of the wrong kind is a TypeError.
"""


# --- first
def normalize_stop(stop):
    if isinstance(stop, bytes):
        stop = stop.decode()
    strings = (stop,) if isinstance(stop, str) else as_tuple("stop", stop, "a non-empty string or a list of them")
    for string in strings:
        if not isinstance(string, str):
            raise TypeError(f"stop must be a non-empty string or a list of them, got {string!r}")
        if not string:
            raise ValueError(f"stop must be a non-empty string or a list of them, got {string!r}")
    return strings


# --- second
def normalize_stop(stop):
    text = "stop takes a non-empty string or several, and got "
    if stop is None:
        return ()
    if isinstance(stop, (str, bytes)):
        stop = [stop if isinstance(stop, str) else str(stop, "utf-8")]
    try:
        strings = tuple(stop)
    except TypeError:
        raise TypeError(text + repr(stop)) from None
    for string in strings:
        if not isinstance(string, str):
            raise TypeError(text + repr(string))
        if string == "":
            raise ValueError(text + repr(string))
    return strings
