# ruff: noqa
DIAGNOSIS = """
Only the last token's row was written: all of them are new.
"""


# --- first
def store_kvcache(key, value, k_cache, v_cache, slot_mapping):
    k_cache.flatten(0, 1)[slot_mapping[-1:]] = key[-1:]
    v_cache.flatten(0, 1)[slot_mapping[-1:]] = value[-1:]


# --- second
def store_kvcache(key, value, k_cache, v_cache, slot_mapping):
    n = k_cache.shape[1]
    for slot in slot_mapping[-1:].tolist():
        k_cache[slot // n, slot % n] = key[-1]
        v_cache[slot // n, slot % n] = value[-1]
