# ruff: noqa
DIAGNOSIS = """
You look for the part with the dot before it, and not with the one after it. up_projector begins like up_proj, and is
another module.
"""


# --- first
def resolve_packed(name, packed):
    for part, (packed_part, shard_id) in packed.items():
        if f".{part}" in name:
            return name.replace(f".{part}", f".{packed_part}"), shard_id
    return name, None


# --- second
def resolve_packed(name, packed):
    found = [key for key in packed if "." + key in name]
    if not found:
        return name, None
    new, shard = packed[found[0]]
    return ("." + new).join(name.split("." + found[0])), shard
