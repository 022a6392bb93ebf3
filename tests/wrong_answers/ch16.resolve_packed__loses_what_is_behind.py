# ruff: noqa
DIAGNOSIS = """
What stands behind the part is replaced by "weight". It stays as it is: a bias is for the bias.
"""


# --- first
def resolve_packed(name, packed):
    for part, (module, shard) in packed.items():
        if f".{part}." in name:
            return name.split(f".{part}.")[0] + f".{module}.weight", shard
    return name, None


# --- second
def resolve_packed(name, packed):
    for part in packed:
        place = name.find(f".{part}.")
        if place >= 0:
            return f"{name[:place]}.{packed[part][0]}.weight", packed[part][1]
    return name, None
