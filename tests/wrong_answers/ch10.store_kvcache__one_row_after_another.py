# ruff: noqa
DIAGNOSIS = """
The rows lie side by side from the first token's slot on. Slots are side by side only within a block; slot_mapping
names each.
"""


# --- first
def store_kvcache(key, value, k_cache, v_cache, slot_mapping):
    first = int(slot_mapping[0]) if len(slot_mapping) else 0
    k_cache.flatten(0, 1)[first : first + len(key)] = key[: len(k_cache.flatten(0, 1)) - first]
    v_cache.flatten(0, 1)[first : first + len(key)] = value[: len(k_cache.flatten(0, 1)) - first]


# --- second
def store_kvcache(key, value, k_cache, v_cache, slot_mapping):
    first = int(slot_mapping[0]) if len(slot_mapping) else 0
    size = k_cache.shape[1]
    for i in range(len(key)):
        block, place = divmod(first + i, size)
        if block < len(k_cache):
            k_cache[block, place] = key[i]
            v_cache[block, place] = value[i]
