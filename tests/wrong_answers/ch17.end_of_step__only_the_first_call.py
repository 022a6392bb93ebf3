# ruff: noqa
DIAGNOSIS = """
You count the first call and then only kernels. That is right where the CPU stays ahead; where kernels are shorter than
calls, the GPU waits for every one of them.
"""


# --- first
def end_of_step(launches, kernels):
    return sum(launches[:1]) + sum(kernels)


# --- second
def end_of_step(launches, kernels):
    if not kernels:
        return 0.0
    seconds = launches[0]
    for kernel in kernels:
        seconds = seconds + kernel
    return seconds
