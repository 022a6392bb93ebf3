# ruff: noqa
DIAGNOSIS = """
Keys lie in v_cache and values in k_cache.
"""


# --- first
def store_kvcache(key, value, k_cache, v_cache, slot_mapping):
    k_cache.flatten(0, 1)[slot_mapping] = value
    v_cache.flatten(0, 1)[slot_mapping] = key


# --- second
def store_kvcache(key, value, k_cache, v_cache, slot_mapping):
    n = k_cache.shape[1]
    for k, v, slot in zip(key, value, slot_mapping.tolist()):
        k_cache[slot // n, slot % n] = v
        v_cache[slot // n, slot % n] = k
