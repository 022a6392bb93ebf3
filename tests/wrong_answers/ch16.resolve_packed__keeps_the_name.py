# ruff: noqa
DIAGNOSIS = """
You return the tensor's own name, and only the shard id is looked up. The parameter has another name: the one of the
packed module in the place of the part.
"""


# --- first
def resolve_packed(name, packed):
    for part, (packed_part, shard_id) in packed.items():
        if f".{part}." in name:
            return name, shard_id
    return name, None


# --- second
def resolve_packed(name, packed):
    pieces = name.split(".")
    for place in range(1, len(pieces) - 1):
        if pieces[place] in packed:
            new, shard = packed[pieces[place]]
            return ".".join(pieces), shard
    return name, None
