# ruff: noqa
DIAGNOSIS = """
You only look for parts before ".weight". A bias has a name like it, and so may be what stands between the part and
the end.
"""


# --- first
def resolve_packed(name, packed):
    for part, (packed_part, shard_id) in packed.items():
        if name.endswith(f".{part}.weight"):
            return name.replace(f".{part}.", f".{packed_part}."), shard_id
    return name, None


# --- second
def resolve_packed(name, packed):
    pieces = name.split(".")
    for place in range(1, len(pieces) - 1):
        if pieces[place] in packed and pieces[place + 1 :] == ["weight"]:
            new, shard = packed[pieces[place]]
            pieces[place] = new
            return ".".join(pieces), shard
    return name, None
