# ruff: noqa
DIAGNOSIS = """
Your shard id is the number of the part in the mapping. The id is what the mapping says, "q" for instance.
"""


# --- first
def resolve_packed(name, packed):
    for number, part in enumerate(packed):
        if f".{part}." in name:
            return name.replace(f".{part}.", f".{packed[part][0]}."), number
    return name, None


# --- second
def resolve_packed(name, packed):
    parts = list(packed)
    for part in parts:
        if f".{part}." in name:
            return name.replace(f".{part}.", f".{packed[part][0]}."), parts.index(part)
    return name, None
