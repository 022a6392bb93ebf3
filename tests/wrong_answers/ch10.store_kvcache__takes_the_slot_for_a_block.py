# ruff: noqa
DIAGNOSIS = """
A slot was taken for the number of a block. It counts places through all blocks: slot // block_size is the block, slot
% block_size the place.
"""


# --- first
def store_kvcache(key, value, k_cache, v_cache, slot_mapping):
    k_cache[slot_mapping] = key[:, None]
    v_cache[slot_mapping] = value[:, None]


# --- second
def store_kvcache(key, value, k_cache, v_cache, slot_mapping):
    for i, slot in enumerate(slot_mapping.tolist()):
        k_cache[slot] = key[i]
        v_cache[slot] = value[i]
