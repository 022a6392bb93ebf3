# ruff: noqa
DIAGNOSIS = """
You take the slower of CPU and GPU. They do work side by side, but a kernel cannot begin before its own call has
returned: the first call always shows, and the last kernel, too.
"""


# --- first
def end_of_step(launches, kernels):
    return max(sum(launches), sum(kernels))


# --- second
def end_of_step(launches, kernels):
    cpu = gpu = 0.0
    for i in range(len(kernels)):
        cpu += launches[i]
        gpu += kernels[i]
    return cpu if cpu > gpu else gpu
