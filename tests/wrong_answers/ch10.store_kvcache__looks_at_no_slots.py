# ruff: noqa
DIAGNOSIS = """
The rows lie in the first slots, in the order of the tokens. Each belongs into its own slot, which slot_mapping names.
"""


# --- first
def store_kvcache(key, value, k_cache, v_cache, slot_mapping):
    k_cache.flatten(0, 1)[: len(key)] = key
    v_cache.flatten(0, 1)[: len(value)] = value


# --- second
def store_kvcache(key, value, k_cache, v_cache, slot_mapping):
    for i in range(len(slot_mapping)):
        k_cache[i // k_cache.shape[1], i % k_cache.shape[1]] = key[i]
        v_cache[i // k_cache.shape[1], i % k_cache.shape[1]] = value[i]
