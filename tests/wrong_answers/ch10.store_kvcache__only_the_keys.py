# ruff: noqa
DIAGNOSIS = """
The keys are in their slots, and the values are nowhere: v_cache is as it was.
"""


# --- first
def store_kvcache(key, value, k_cache, v_cache, slot_mapping):
    k_cache.flatten(0, 1)[slot_mapping] = key


# --- second
def store_kvcache(key, value, k_cache, v_cache, slot_mapping):
    n = k_cache.shape[1]
    for i, slot in enumerate(slot_mapping.tolist()):
        k_cache[slot // n][slot % n] = key[i]
