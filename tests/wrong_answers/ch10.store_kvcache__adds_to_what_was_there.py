# ruff: noqa
DIAGNOSIS = """
The rows were added to what lay in the slots. A slot may hold what its last owner left: it is overwritten.
"""


# --- first
def store_kvcache(key, value, k_cache, v_cache, slot_mapping):
    k_cache.flatten(0, 1).index_add_(0, slot_mapping, key)
    v_cache.flatten(0, 1).index_add_(0, slot_mapping, value)


# --- second
def store_kvcache(key, value, k_cache, v_cache, slot_mapping):
    n = k_cache.shape[1]
    k_cache[slot_mapping // n, slot_mapping % n] += key
    v_cache[slot_mapping // n, slot_mapping % n] += value
