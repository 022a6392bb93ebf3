# ruff: noqa
DIAGNOSIS = """
You write what later kernels use, and forget `outputs`: they are needed after the last kernel, so they have to be in
memory, too.
"""


# --- first
def bytes_moved(kernels, sizes, outputs):
    total = 0
    for i, kernel in enumerate(kernels):
        made = {name for _, name in kernel}
        used = {name for names, _ in kernel for name in names}
        later = {name for other in kernels[i + 1 :] for names, _ in other for name in names}
        total += sum(sizes[name] for name in (used - made) | (made & later))
    return total


# --- second
def bytes_moved(kernels, sizes, outputs):
    total, later = 0, set()
    for kernel in reversed(kernels):
        inside, reads = set(), set()
        for names, made in kernel:
            reads.update(name for name in names if name not in inside)
            inside.add(made)
        total += sum(sizes[name] for name in reads) + sum(sizes[name] for name in inside if name in later)
        later.update(reads)
    return total
