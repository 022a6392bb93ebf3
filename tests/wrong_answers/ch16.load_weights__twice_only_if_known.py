# ruff: noqa
DIAGNOSIS = """
You notice a second tensor only if the first one has filled something. A name that comes twice is an error also when
it is unknown.
"""


# --- first
def load_weights(params, packed, weights):
    missing = {target for name in params for target in targets_of(name, packed)}
    unknown, seen = [], set()
    for name, tensor in weights:
        param_name, shard_id = resolve_packed(name, packed)
        if param_name in params:
            if name in seen:
                raise ValueError(f"{name} is there twice")
            seen.add(name)
            load_weight(params[param_name], tensor, shard_id, name)
            missing.discard((param_name, shard_id))
        else:
            unknown.append(name)
    return missing, unknown


# --- second
def load_weights(params, packed, weights):
    names, done, others = [], [], []
    for key, value in weights:
        target = resolve_packed(key, packed)
        if target[0] not in params:
            others.append(key)
            continue
        if target in done:
            raise ValueError("twice: " + key)
        load_weight(params[target[0]], value, target[1], key)
        done.append(target)
    left = set()
    for param_name in params:
        for target in targets_of(param_name, packed):
            if target not in done:
                left.add(target)
    return left, others
