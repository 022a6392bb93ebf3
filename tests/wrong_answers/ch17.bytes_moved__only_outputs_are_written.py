# ruff: noqa
DIAGNOSIS = """
You write only what `outputs` names. A later kernel can use only what is in memory, so what it uses has to be written,
too.
"""


# --- first
def bytes_moved(kernels, sizes, outputs):
    total = 0
    for kernel in kernels:
        made = {name for _, name in kernel}
        used = {name for names, _ in kernel for name in names}
        total += sum(sizes[name] for name in used - made)
        total += sum(sizes[name] for name in made if name in outputs)
    return total


# --- second
def bytes_moved(kernels, sizes, outputs):
    moved = []
    for kernel in kernels:
        inside = [made for _, made in kernel]
        for name in dict.fromkeys(n for names, _ in kernel for n in names):
            if name not in inside:
                moved.append(name)
        moved += [name for name in inside if name in outputs]
    return sum(map(sizes.get, moved))
