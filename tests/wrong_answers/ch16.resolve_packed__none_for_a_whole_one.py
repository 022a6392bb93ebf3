# ruff: noqa
DIAGNOSIS = """
For a whole parameter nothing comes back. It has a target, too: its own name, and None in the place of a shard id.
"""


# --- first
def resolve_packed(name, packed):
    for part, (packed_part, shard_id) in packed.items():
        if f".{part}." in name:
            return name.replace(f".{part}.", f".{packed_part}."), shard_id


# --- second
def resolve_packed(name, packed):
    pieces = name.split(".")
    for place in range(1, len(pieces) - 1):
        if pieces[place] in packed:
            new, shard = packed[pieces[place]]
            pieces[place] = new
            return ".".join(pieces), shard
    return None
