# ruff: noqa
DIAGNOSIS = """
You expect one tensor for each parameter, the whole of it. A packed parameter is filled by several; targets_of tells
them.
"""


# --- first
def load_weights(params, packed, weights):
    missing = {(name, None) for name in params}
    unknown, seen = [], set()
    for name, tensor in weights:
        if name in seen:
            raise ValueError(f"{name} is there twice")
        seen.add(name)
        param_name, shard_id = resolve_packed(name, packed)
        if param_name in params:
            load_weight(params[param_name], tensor, shard_id, name)
            missing.discard((param_name, shard_id))
        else:
            unknown.append(name)
    return missing, unknown


# --- second
def load_weights(params, packed, weights):
    names, done, others = [], [], []
    for key, value in weights:
        if key in names:
            raise ValueError("twice: " + key)
        names.append(key)
        target = resolve_packed(key, packed)
        if target[0] not in params:
            others.append(key)
            continue
        load_weight(params[target[0]], value, target[1], key)
        done.append(target)
    left = set()
    for param_name in params:
        if (param_name, None) not in done:
            left.add((param_name, None))
    return left, others
