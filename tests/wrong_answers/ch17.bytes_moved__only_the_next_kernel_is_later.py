# ruff: noqa
DIAGNOSIS = """
You look at the next kernel only. What a kernel makes may be used by any later one, and has to be in memory for it.
"""


# --- first
def bytes_moved(kernels, sizes, outputs):
    total = 0
    for i, kernel in enumerate(kernels):
        made = {name for _, name in kernel}
        used = {name for names, _ in kernel for name in names}
        after = {name for other in kernels[i + 1 : i + 2] for names, _ in other for name in names}
        total += sum(sizes[name] for name in used - made)
        total += sum(sizes[name] for name in made & (after | set(outputs)))
    return total


# --- second
def bytes_moved(kernels, sizes, outputs):
    total, after = 0, set()
    for kernel in reversed(kernels):
        made = [name for _, name in kernel]
        used = set(name for names, _ in kernel for name in names)
        for name in made:
            if name in after or name in outputs:
                total += sizes[name]
        for name in used.difference(made):
            total += sizes[name]
        after = used
    return total
