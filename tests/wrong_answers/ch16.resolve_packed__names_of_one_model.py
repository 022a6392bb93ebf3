# ruff: noqa
DIAGNOSIS = """
The parts of Qwen3 are written into your function. The mapping says which there are: other models have others, or
none.
"""


# --- first
def resolve_packed(name, packed):
    for letter in "qkv":
        if f".{letter}_proj." in name:
            return name.replace(f".{letter}_proj.", ".qkv_proj."), letter
    for number, part in enumerate(("gate_proj", "up_proj")):
        if f".{part}." in name:
            return name.replace(f".{part}.", ".gate_up_proj."), number
    return name, None


# --- second
def resolve_packed(name, packed):
    known = {"q_proj": ("qkv_proj", "q"), "k_proj": ("qkv_proj", "k"), "v_proj": ("qkv_proj", "v")}
    known |= {"gate_proj": ("gate_up_proj", 0), "up_proj": ("gate_up_proj", 1)}
    for part in known:
        if f".{part}." in name:
            module, shard = known[part]
            return name.replace(f".{part}.", f".{module}."), shard
    return name, None
