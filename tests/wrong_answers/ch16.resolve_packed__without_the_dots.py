# ruff: noqa
DIAGNOSIS = """
You look for the part anywhere in the name. But up_proj is also the end of gate_up_proj, and k_proj of block_proj: it
has to stand between two dots.
"""


# --- first
def resolve_packed(name, packed):
    for part, (packed_part, shard_id) in packed.items():
        if part in name:
            return name.replace(part, packed_part), shard_id
    return name, None


# --- second
def resolve_packed(name, packed):
    found = [part for part in packed if name.find(part) >= 0]
    if not found:
        return name, None
    module, shard = packed[found[0]]
    return module.join(name.split(found[0])), shard
