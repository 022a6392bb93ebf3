# ruff: noqa
DIAGNOSIS = """
You return the name of the packed module alone. The parameter has a whole name: what stands before and behind the part
stays.
"""


# --- first
def resolve_packed(name, packed):
    for part, (packed_part, shard_id) in packed.items():
        if f".{part}." in name:
            return packed_part, shard_id
    return name, None


# --- second
def resolve_packed(name, packed):
    pieces = name.split(".")
    for place in range(1, len(pieces) - 1):
        if pieces[place] in packed:
            new, shard = packed[pieces[place]]
            pieces[place] = new
            return new, shard
    return name, None
