# ruff: noqa
DIAGNOSIS = """
Nothing has arrived in the caches: what was written is a copy of them. cache[slots] is a copy, so neither another index
behind it nor .copy_() reaches the cache; cache[slots] = rows, or cache[blocks, places] = rows, does.
"""


# --- first
def store_kvcache(key, value, k_cache, v_cache, slot_mapping):
    k_flat, v_flat = k_cache.flatten(0, 1).clone(), v_cache.flatten(0, 1).clone()
    k_flat[slot_mapping] = key
    v_flat[slot_mapping] = value


# --- second
def store_kvcache(key, value, k_cache, v_cache, slot_mapping):
    size = k_cache.shape[1]
    blocks = slot_mapping // size
    places = slot_mapping % size
    rows = torch.arange(len(slot_mapping))
    k_cache[blocks][rows, places] = key
    v_cache[blocks][rows, places] = value
