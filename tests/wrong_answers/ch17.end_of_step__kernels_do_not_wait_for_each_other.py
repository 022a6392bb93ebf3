# ruff: noqa
DIAGNOSIS = """
You let kernels run at the same time. The GPU runs one after the other: a kernel waits for its call, and for the kernel
before it.
"""


# --- first
def end_of_step(launches, kernels):
    launched, end = 0.0, 0.0
    for launch, kernel in zip(launches, kernels):
        launched += launch
        end = max(end, launched + kernel)
    return end


# --- second
def end_of_step(launches, kernels):
    ends = [sum(launches[: i + 1]) + kernel for i, kernel in enumerate(kernels)]
    return max(ends, default=0.0)
