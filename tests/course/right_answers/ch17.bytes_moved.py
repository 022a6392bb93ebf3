# ruff: noqa
# Right, and nothing like ours: a grader must not ask for our way of doing it.
def bytes_moved(kernels, sizes, outputs):
    """Tensor by tensor: how many kernels fetch it, and whether anybody makes and stores it."""
    total = 0
    for name, size in sizes.items():
        fetched = stored = 0
        maker = [i for i, kernel in enumerate(kernels) if any(made == name for _, made in kernel)]
        for i, kernel in enumerate(kernels):
            uses = any(name in names for names, _ in kernel)
            fetched += uses and i not in maker
        if maker and (fetched or name in outputs):
            stored = 1
        total += (fetched + stored) * size
    return total
