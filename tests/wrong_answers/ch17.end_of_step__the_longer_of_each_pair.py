# ruff: noqa
DIAGNOSIS = """
You take the longer of each call and its kernel. But the CPU runs ahead: while a long kernel computes, it can launch
several short ones, not only the next.
"""


# --- first
def end_of_step(launches, kernels):
    return sum(max(launch, kernel) for launch, kernel in zip(launches, kernels))


# --- second
def end_of_step(launches, kernels):
    total = 0.0
    for launch, kernel in zip(launches, kernels):
        if launch > kernel:
            total += launch
        else:
            total += kernel
    return total
