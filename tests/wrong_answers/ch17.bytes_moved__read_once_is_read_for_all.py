# ruff: noqa
DIAGNOSIS = """
You read each tensor once in all. What one kernel has read is gone when it is over; the next one that uses it reads it
again.
"""


# --- first
def bytes_moved(kernels, sizes, outputs):
    total, seen = 0, set()
    for i, kernel in enumerate(kernels):
        made = {name for _, name in kernel}
        used = {name for names, _ in kernel for name in names}
        later = {name for other in kernels[i + 1 :] for names, _ in other for name in names}
        total += sum(sizes[name] for name in used - made - seen)
        total += sum(sizes[name] for name in made & (later | set(outputs)))
        seen |= used - made
    return total


# --- second
def bytes_moved(kernels, sizes, outputs):
    read, written = set(), set()
    for i, kernel in enumerate(kernels):
        inside = set()
        for names, made in kernel:
            read.update(n for n in names if n not in inside)
            inside.add(made)
        rest = [n for other in kernels[i + 1 :] for names, _ in other for n in names]
        written.update(n for n in inside if n in outputs or n in rest)
    return sum(sizes[n] for n in read) + sum(sizes[n] for n in written)
