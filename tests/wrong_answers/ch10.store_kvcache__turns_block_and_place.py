# ruff: noqa
DIAGNOSIS = """
Block and place have changed places: slot // block_size is the block, which is the first index.
"""


# --- first
def store_kvcache(key, value, k_cache, v_cache, slot_mapping):
    n = k_cache.shape[1]
    k_cache[slot_mapping % n, slot_mapping // n] = key
    v_cache[slot_mapping % n, slot_mapping // n] = value


# --- second
def store_kvcache(key, value, k_cache, v_cache, slot_mapping):
    for i, slot in enumerate(slot_mapping.tolist()):
        block, place = divmod(slot, k_cache.shape[1])
        k_cache[place, block] = key[i]
        v_cache[place, block] = value[i]
