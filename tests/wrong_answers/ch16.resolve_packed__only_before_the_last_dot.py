# ruff: noqa
DIAGNOSIS = """
You only look at the piece before the last dot. The part may stand between any two dots.
"""


# --- first
def resolve_packed(name, packed):
    *path, module, kind = ["", *name.split(".")] if "." not in name else name.split(".")
    if not path or module not in packed:
        return name, None
    return ".".join([*path, packed[module][0], kind]), packed[module][1]


# --- second
def resolve_packed(name, packed):
    for part, (new, shard) in packed.items():
        head, dot, kind = name.rpartition(".")
        if head.endswith("." + part):
            return head[: -len(part)] + new + dot + kind, shard
    return name, None
