# ruff: noqa
DIAGNOSIS = """
You find the part between its dots, and then replace it everywhere, also inside the name of another module. Replace it
together with its dots.
"""


# --- first
def resolve_packed(name, packed):
    for part, (packed_part, shard_id) in packed.items():
        if f".{part}." in name:
            return name.replace(part, packed_part), shard_id
    return name, None


# --- second
def resolve_packed(name, packed):
    for piece in name.split(".")[1:-1]:
        if piece in packed:
            return packed[piece][0].join(name.split(piece)), packed[piece][1]
    return name, None
