# ruff: noqa
DIAGNOSIS = """
You make a dict of all tensors before the first is loaded. Then all of them are in memory beside the model, and a name
that comes twice goes unnoticed.
"""


# --- first
def load_weights(params, packed, weights):
    missing = {target for name in params for target in targets_of(name, packed)}
    unknown, seen = [], set()
    for name, tensor in dict(weights).items():
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
    everything = {key: value for key, value in weights}
    for key, value in everything.items():
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
            if target not in done:
                left.add(target)
    return left, others
