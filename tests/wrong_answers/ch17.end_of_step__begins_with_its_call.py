# ruff: noqa
DIAGNOSIS = """
You let a kernel begin when its call begins. It is in the queue when the call returns.
"""


# --- first
def end_of_step(launches, kernels):
    launched = done = 0.0
    for launch, kernel in zip(launches, kernels):
        done = max(launched, done) + kernel
        launched += launch
    return done


# --- second
def end_of_step(launches, kernels):
    done = 0.0
    for i, kernel in enumerate(kernels):
        begin = sum(launches[:i])
        if begin < done:
            begin = done
        done = begin + kernel
    return done
