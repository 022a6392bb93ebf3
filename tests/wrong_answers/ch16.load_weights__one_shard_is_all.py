# ruff: noqa
DIAGNOSIS = """
A packed parameter counts as filled when its first shard has come. Each shard has a place of its own, so strike out
the target, not the parameter.
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
            load_weight(params[param_name], tensor, shard_id, name)
            missing -= set(targets_of(param_name, packed))
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
        for target in targets_of(param_name, packed):
            if target[0] not in [name for name, _ in done]:
                left.add(target)
    return left, others
