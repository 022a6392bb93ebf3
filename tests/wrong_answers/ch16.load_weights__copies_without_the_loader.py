# ruff: noqa
DIAGNOSIS = """
You copy the tensor over the whole parameter. A packed parameter, or one of several ranks, knows itself which rows of
it a tensor is for: load_weight asks it.
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
            params[param_name].data[: len(tensor)] = tensor
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
        params[target[0]].data[: len(value)].copy_(value)
        done.append(target)
    left = set()
    for param_name in params:
        for target in targets_of(param_name, packed):
            if target not in done:
                left.add(target)
    return left, others
