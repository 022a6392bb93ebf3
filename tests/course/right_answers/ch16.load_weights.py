# ruff: noqa
# Right, and nothing like ours: a grader must not ask for our way of doing it.
from collections import Counter


def load_weights(params, packed, weights):
    count, loaded, strangers = Counter(), set(), []
    for original, tensor in weights:
        count[original] += 1
        if count[original] == 2:
            raise ValueError(f"twice: {original}")
        target = resolve_packed(original, packed)
        param = params.get(target[0])
        if param is None:
            strangers.append(original)
        else:
            load_weight(param, tensor, target[1], original)
            loaded.add(target)
    return {t for name in params for t in targets_of(name, packed) if t not in loaded}, strangers
