# ruff: noqa
DIAGNOSIS = """
You write everything that a kernel makes. What only its own operations use stays inside it: that is what fusing saves.
"""


# --- first
def bytes_moved(kernels, sizes, outputs):
    total = 0
    for kernel in kernels:
        made = {name for _, name in kernel}
        used = {name for names, _ in kernel for name in names}
        total += sum(sizes[name] for name in used | made)
    return total


# --- second
def bytes_moved(kernels, sizes, outputs):
    total = 0
    for kernel in kernels:
        held = []
        for names, made in kernel:
            for name in (*names, made):
                if name not in held:
                    held.append(name)
        total += sum(sizes[name] for name in held)
    return total
