# ruff: noqa
DIAGNOSIS = """
You count each operation by itself: it reads what it uses and writes what it makes. That is how it is without fusing.
Inside a kernel, what one operation makes and the next uses never crosses the memory.
"""


# --- first
def bytes_moved(kernels, sizes, outputs):
    operations = [operation for kernel in kernels for operation in kernel]
    total = 0
    for i, (names, made) in enumerate(operations):
        total += sum(sizes[name] for name in set(names))
        if made in outputs or any(made in later for later, _ in operations[i + 1 :]):
            total += sizes[made]
    return total


# --- second
def bytes_moved(kernels, sizes, outputs):
    wanted = set(outputs)
    for kernel in kernels:
        for names, _ in kernel:
            wanted.update(names)
    moved = []
    for kernel in kernels:
        for names, made in kernel:
            moved.extend(dict.fromkeys(names))
            moved.extend([made] if made in wanted else [])
    return sum(sizes[name] for name in moved)
