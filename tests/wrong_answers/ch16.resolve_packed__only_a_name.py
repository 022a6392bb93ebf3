# ruff: noqa
DIAGNOSIS = """
Only the name comes back. The loader needs the shard id beside it, to know where in the parameter the tensor goes.
"""


# --- first
def resolve_packed(name, packed):
    for part, (packed_part, shard_id) in packed.items():
        if f".{part}." in name:
            return name.replace(f".{part}.", f".{packed_part}.")
    return name


# --- second
def resolve_packed(name, packed):
    pieces = name.split(".")
    for place in range(1, len(pieces) - 1):
        if pieces[place] in packed:
            new, shard = packed[pieces[place]]
            pieces[place] = new
            return ".".join(pieces)
    return name
