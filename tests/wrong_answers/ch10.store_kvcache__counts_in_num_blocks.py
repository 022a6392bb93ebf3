# ruff: noqa
DIAGNOSIS = """
The slot was divided by the number of blocks. A block has block_size slots, which is the second dimension of the
cache.
"""


# --- first
def store_kvcache(key, value, k_cache, v_cache, slot_mapping):
    n = k_cache.shape[0]
    k_cache[slot_mapping // n, slot_mapping % n] = key
    v_cache[slot_mapping // n, slot_mapping % n] = value


# --- second
def store_kvcache(key, value, k_cache, v_cache, slot_mapping):
    for i, slot in enumerate(slot_mapping.tolist()):
        block, place = divmod(slot, len(k_cache))
        k_cache[block, place] = key[i]
        v_cache[block, place] = value[i]
