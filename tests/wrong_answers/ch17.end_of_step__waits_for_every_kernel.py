# ruff: noqa
DIAGNOSIS = """
You add up all calls and all kernels, as if CPU and GPU never worked at the same time. The CPU puts a kernel into the
queue and goes on; the GPU begins as soon as one is there, and does not wait for the calls that come later.
"""


# --- first
def end_of_step(launches, kernels):
    return sum(launches) + sum(kernels)


# --- second
def end_of_step(launches, kernels):
    now = 0.0
    for launch, kernel in zip(launches, kernels):
        now += launch + kernel
    return now
