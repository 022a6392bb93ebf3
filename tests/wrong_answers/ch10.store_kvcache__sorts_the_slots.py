# ruff: noqa
DIAGNOSIS = """
The rows lie in the right slots, but in the order of the slots. Row i belongs into slot_mapping[i].
"""


# --- first
def store_kvcache(key, value, k_cache, v_cache, slot_mapping):
    slots = slot_mapping.sort().values
    k_cache.flatten(0, 1)[slots] = key
    v_cache.flatten(0, 1)[slots] = value


# --- second
def store_kvcache(key, value, k_cache, v_cache, slot_mapping):
    is_slot = torch.zeros(k_cache.shape[0] * k_cache.shape[1], dtype=torch.bool)
    is_slot[slot_mapping] = True
    k_cache.flatten(0, 1)[is_slot] = key
    v_cache.flatten(0, 1)[is_slot] = value
