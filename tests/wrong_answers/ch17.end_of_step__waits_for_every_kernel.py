# ruff: noqa
DIAGNOSIS = """
You add up calls and kernels, as if the CPU waited for each kernel before it launched the next. It does not: it puts
them into a queue and goes on.
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
