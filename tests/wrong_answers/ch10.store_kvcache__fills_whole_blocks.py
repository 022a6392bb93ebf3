# ruff: noqa
DIAGNOSIS = """
Every row was written into all places of its block. The place is slot % block_size.
"""


# --- first
def store_kvcache(key, value, k_cache, v_cache, slot_mapping):
    n = k_cache.shape[1]
    k_cache[slot_mapping // n] = key[:, None]
    v_cache[slot_mapping // n] = value[:, None]


# --- second
def store_kvcache(key, value, k_cache, v_cache, slot_mapping):
    n = k_cache.shape[1]
    for i, slot in enumerate(slot_mapping.tolist()):
        k_cache[slot // n] = key[i]
        v_cache[slot // n] = value[i]
