# ruff: noqa
DIAGNOSIS = """
You let the CPU make its next call only when the kernel before it has begun, and count from there. A call returns at once when the kernel is in
the queue; the CPU never waits for the GPU here.
"""


# --- first
def end_of_step(launches, kernels):
    launched = done = 0.0
    for launch, kernel in zip(launches, kernels):
        launched = max(launched + launch, done)
        done = launched + kernel
    return done


# --- second
def end_of_step(launches, kernels):
    cpu, gpu = 0.0, 0.0
    for i in range(len(kernels)):
        cpu = cpu + launches[i]
        if gpu > cpu:
            cpu = gpu
        gpu = cpu + kernels[i]
    return gpu
