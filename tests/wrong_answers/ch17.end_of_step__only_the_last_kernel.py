# ruff: noqa
DIAGNOSIS = """
You count all calls and the last kernel. That is right where the GPU waits for every call; where kernels are longer,
they pile up, and many are left when the last call returns.
"""


# --- first
def end_of_step(launches, kernels):
    return sum(launches) + sum(kernels[-1:])


# --- second
def end_of_step(launches, kernels):
    seconds, last = 0.0, 0.0
    for launch, kernel in zip(launches, kernels):
        seconds += launch
        last = kernel
    return seconds + last
