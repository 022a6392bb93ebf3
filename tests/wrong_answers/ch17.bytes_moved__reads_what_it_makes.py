# ruff: noqa
DIAGNOSIS = """
You read all that a kernel's operations use, also what the same kernel makes. That is inside it already, and need not be
fetched.
"""


# --- first
def bytes_moved(kernels, sizes, outputs):
    total = 0
    for i, kernel in enumerate(kernels):
        made = {name for _, name in kernel}
        used = {name for names, _ in kernel for name in names}
        later = {name for other in kernels[i + 1 :] for names, _ in other for name in names}
        total += sum(sizes[name] for name in used)
        total += sum(sizes[name] for name in made if name in later or name in outputs)
    return total


# --- second
def bytes_moved(kernels, sizes, outputs):
    total, wanted = 0, set(outputs)
    for kernel in reversed(kernels):
        used = set()
        for names, _ in kernel:
            used |= set(names)
        for _, made in kernel:
            if made in wanted:
                total += sizes[made]
        for name in used:
            total += sizes[name]
        wanted |= used
    return total
