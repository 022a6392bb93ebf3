# ruff: noqa
DIAGNOSIS = """
You look for the part with the dot behind it, and not with the one before it. gate_up_proj ends like up_proj, and is
packed already.
"""


# --- first
def resolve_packed(name, packed):
    for part, (packed_part, shard_id) in packed.items():
        if f"{part}." in name:
            return name.replace(f"{part}.", f"{packed_part}."), shard_id
    return name, None


# --- second
def resolve_packed(name, packed):
    found = [key for key in packed if key + "." in name]
    if not found:
        return name, None
    new, shard = packed[found[0]]
    return (new + ".").join(name.split(found[0] + ".")), shard
