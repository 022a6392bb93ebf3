# ruff: noqa
DIAGNOSIS = """
The shard id 0 becomes None. It is a shard id like any other, and only looks like nothing in a condition: ask whether
it is None.
"""


# --- first
def resolve_packed(name, packed):
    for part, (packed_part, shard_id) in packed.items():
        if f".{part}." in name:
            return name.replace(f".{part}.", f".{packed_part}."), shard_id or None
    return name, None


# --- second
def resolve_packed(name, packed):
    pieces = name.split(".")
    for place in range(1, len(pieces) - 1):
        if pieces[place] in packed:
            new, shard = packed[pieces[place]]
            pieces[place] = new
            return ".".join(pieces), shard if shard else None
    return name, None
