# ruff: noqa
# Right, and nothing like ours: a grader must not ask for our way of doing it.
def normalize_stop(stop):
    text = "for stop, give a non-empty string or several; this is none: "
    if stop is None:
        return ()
    strings = []
    for string in [stop] if isinstance(stop, str) or not hasattr(stop, "__iter__") else stop:
        match string:
            case "":
                raise ValueError(text + repr(string))
            case str():
                strings.append(string)
            case _:
                raise TypeError(text + repr(string))
    return (*strings,)
