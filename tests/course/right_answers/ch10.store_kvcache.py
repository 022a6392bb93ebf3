# ruff: noqa
def store_kvcache(key, value, k_cache, v_cache, slot_mapping):
    size = k_cache.shape[1]
    for cache, rows in ((k_cache, key), (v_cache, value)):
        for row, slot in zip(rows.unbind(), slot_mapping.tolist()):
            block, place = divmod(slot, size)
            cache[block, place].copy_(row)
