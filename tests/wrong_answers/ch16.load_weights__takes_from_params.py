# ruff: noqa
DIAGNOSIS = """
You take parameters out of params when they are filled. The mapping is the model's own, and the next shard of the same
parameter is not found.
"""


# --- first
def load_weights(params, packed, weights):
    missing = {target for name in params for target in targets_of(name, packed)}
    unknown, seen = [], set()
    for name, tensor in weights:
        if name in seen:
            raise ValueError(f"{name} is there twice")
        seen.add(name)
        param_name, shard_id = resolve_packed(name, packed)
        if param_name in params:
            load_weight(params.pop(param_name), tensor, shard_id, name)
            missing.discard((param_name, shard_id))
        else:
            unknown.append(name)
    return missing, unknown


# --- second
def load_weights(params, packed, weights):
    left, others, names = [t for name in params for t in targets_of(name, packed)], [], []
    for key, value in weights:
        if key in names:
            raise ValueError("twice: " + key)
        names += [key]
        target = resolve_packed(key, packed)
        if target[0] not in params:
            others += [key]
            continue
        load_weight(params[target[0]], value, target[1], key)
        del params[target[0]]
        left.remove(target)
    return set(left), others
