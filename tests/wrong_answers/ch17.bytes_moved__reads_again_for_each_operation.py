# ruff: noqa
DIAGNOSIS = """
You read a tensor once for each operation that uses it. A kernel reads it once, however many of its operations use it.
"""


# --- first
def bytes_moved(kernels, sizes, outputs):
    total = 0
    for i, kernel in enumerate(kernels):
        made = {name for _, name in kernel}
        later = {name for other in kernels[i + 1 :] for names, _ in other for name in names}
        for names, _ in kernel:
            total += sum(sizes[name] for name in set(names) if name not in made)
        total += sum(sizes[name] for name in made if name in later or name in outputs)
    return total


# --- second
def bytes_moved(kernels, sizes, outputs):
    moved, wanted = [], set(outputs)
    for kernel in kernels[::-1]:
        inside = [made for _, made in kernel]
        reads = [n for names, _ in kernel for n in dict.fromkeys(names) if n not in inside]
        moved += reads + [name for name in inside if name in wanted]
        wanted.update(reads)
    return sum(sizes[name] for name in moved)
