# ruff: noqa
DIAGNOSIS = """
The shard id becomes a text. It has to come back as packed has it: the loader of gate_up_proj counts with it.
"""


# --- first
def resolve_packed(name, packed):
    for part, (packed_part, shard_id) in packed.items():
        if f".{part}." in name:
            return name.replace(f".{part}.", f".{packed_part}."), str(shard_id)
    return name, None


# --- second
def resolve_packed(name, packed):
    pieces = name.split(".")
    for place in range(1, len(pieces) - 1):
        if pieces[place] in packed:
            new, shard = packed[pieces[place]]
            pieces[place] = new
            return ".".join(pieces), f"{shard}"
    return name, None
