# ruff: noqa
DIAGNOSIS = """
You look for the tensor's own name among the parameters. A part of a packed parameter is not there; resolve_packed
says which parameter it is for.
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
        if name in params:
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
        if key not in params:
            others.append(key)
            continue
        load_weight(params[target[0]], value, target[1], key)
        done.append(target)
    left = set()
    for param_name in params:
        for target in targets_of(param_name, packed):
            if target not in done:
                left.add(target)
    return left, others
