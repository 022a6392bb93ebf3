# ruff: noqa
DIAGNOSIS = """
The two are in the wrong order: the name of the parameter comes first, the shard id second.
"""


# --- first
def resolve_packed(name, packed):
    for part, (packed_part, shard_id) in packed.items():
        if f".{part}." in name:
            return shard_id, name.replace(f".{part}.", f".{packed_part}.")
    return None, name


# --- second
def resolve_packed(name, packed):
    pieces = name.split(".")
    for place in range(1, len(pieces) - 1):
        if pieces[place] in packed:
            new, shard = packed[pieces[place]]
            pieces[place] = new
            return shard, ".".join(pieces)
    return None, name
