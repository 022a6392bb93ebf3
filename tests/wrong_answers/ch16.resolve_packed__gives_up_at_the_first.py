# ruff: noqa
DIAGNOSIS = """
Your loop looks at one part and gives up if that is not in the name. Return the plain name behind the loop, when all
parts have been looked for.
"""


# --- first
def resolve_packed(name, packed):
    for part, (packed_part, shard_id) in packed.items():
        if f".{part}." in name:
            return name.replace(f".{part}.", f".{packed_part}."), shard_id
        return name, None
    return name, None


# --- second
def resolve_packed(name, packed):
    for part in packed:
        if f".{part}." not in name:
            break
        return name.replace(f".{part}.", f".{packed[part][0]}."), packed[part][1]
    return name, None
